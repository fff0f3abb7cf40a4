// The golden checkpoints through the engine's own path: every variant of every layout, every dtype
// and bound, any chunk size and any split between prefill and decode. tests/golden/README.md says
// where the numbers come from.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/str_replace.h"
#include "engine/engine_factory.h"
#include "engine/eval/teacher_forcing.h"
#include "models/checkpoint/model_config.h"
#include "models/checkpoint/model_dir.h"
#include "models/checkpoint/safetensors.h"
#include "tests/engine/sim/page_audit.h"
#include "tests/nightly.h"

namespace fox {
namespace {

namespace fs = std::filesystem;

struct Golden {
  std::string model_dir;
  std::vector<int32_t> ids;
  std::vector<int32_t> greedy;
  std::vector<double> greedy_gaps;
  // First position and rows [rows, vocab] of each stored block.
  std::vector<std::pair<int64_t, std::vector<double>>> logits;
  bool stored_in_float32 = false;
};

double NumberAt(const void* data, bool is_float32, int64_t at) {
  double wide = 0;
  float narrow = 0;
  const size_t size = is_float32 ? sizeof(narrow) : sizeof(wide);
  std::memcpy(is_float32 ? static_cast<void*>(&narrow) : &wide,
              static_cast<const char*>(data) + static_cast<size_t>(at) * size, size);
  return is_float32 ? static_cast<double>(narrow) : wide;
}

void ReadLogits(const fs::path& path, Golden& golden) {
  std::ifstream in(path, std::ios::binary);
  const std::string file(std::istreambuf_iterator<char>(in), {});
  const auto tensors = ParseSafetensors(std::as_bytes(std::span(file)), path.string()).value();
  for (const auto& [name, tensor] : tensors) {
    const int64_t rows = tensor.shape[0], count = rows * tensor.shape[1];
    golden.stored_in_float32 = tensor.dtype_name == "F32";
    const void* const data = tensor.data.data();
    std::vector<double> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(i)] = NumberAt(data, golden.stored_in_float32, i);
    }
    const int64_t first =
        name == "logits_first" ? 0 : static_cast<int64_t>(golden.ids.size()) - rows;
    golden.logits.emplace_back(first, std::move(values));
  }
}

Golden LoadGolden(const std::string& name) {
  const fs::path dir = fs::path(FOX_SOURCE_DIR) / "tests/golden" / name;
  std::ifstream in(dir / "expected.json");
  const auto json = nlohmann::json::parse(in);
  Golden golden;
  golden.model_dir = fs::exists(dir / "config.json")
                         ? dir.string()
                         : (fs::path(FOX_SOURCE_DIR) / "models/demo").string();
  golden.ids = json["input_ids"].get<std::vector<int32_t>>();
  golden.greedy = json.value("greedy", std::vector<int32_t>{});
  golden.greedy_gaps = json.value("greedy_gaps", std::vector<double>{});
  ReadLogits(dir / "expected.safetensors", golden);
  return golden;
}

// Built twice: with FOX_TEST_DEVICE "cuda", what applies to a GPU runs there.
#ifndef FOX_TEST_DEVICE
#define FOX_TEST_DEVICE "cpu"
#endif
bool OnGpu() { return std::string(FOX_TEST_DEVICE) == "cuda"; }

struct Mode {
  std::string dtype;
  AcpMode acp = AcpMode::kOff;
  int64_t chunk = 512;
  int64_t decode_from = -1;
  bool plain_gemm = false;
  bool enforce_eager = false;
  bool portable = false;
};

EngineConfig ConfigOf(const Golden& golden, const Mode& mode) {
  EngineConfig config;
  config.model_dir = golden.model_dir;
  config.device = FOX_TEST_DEVICE;
  config.runner.enforce_eager = mode.enforce_eager;
  config.portable_kernels = mode.portable;
  config.dtype = mode.dtype;
  config.runner.acp = mode.acp;
  config.runner.max_num_seqs = 1;
  config.runner.max_num_batched_tokens = mode.chunk;
  config.runner.max_logit_rows = mode.chunk;
  config.runner.max_model_len = static_cast<int64_t>(golden.ids.size() + golden.greedy.size());
  config.kv_cache_bytes = int64_t{1} << 30;
  config.plain_gemm = mode.plain_gemm;
  return config;
}

// The paper's bound needs a bound on logits, from QK-norm or norm caps.
std::vector<AcpMode> AcpModes(const Golden& golden) {
  const ModelConfig config = ReadModelConfig(ModelDir::Open(golden.model_dir).value()).value();
  const bool decays = config.forget_gate != ForgetGate::kNone;
  if (decays && !config.qk_norm && !config.qk_norm_cap) {
    return {AcpMode::kOff, AcpMode::kCertified};
  }
  return {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified};
}

// The largest result of Error, for the report of a benchmark.
double largest_error = 0;

// Largest relative norm error over the stored blocks.
double Error(const Golden& golden, const Mode& mode) {
  auto runner = LoadRunner(ConfigOf(golden, mode));
  EXPECT_TRUE(runner.ok()) << runner.status();
  if (!runner.ok()) return INFINITY;
  const int64_t vocab = (*runner)->limits().vocab_size;
  std::vector<double> difference(golden.logits.size()), norm(golden.logits.size());
  TeacherForcingOptions options;
  options.chunk = mode.chunk;
  options.decode_from = mode.decode_from;
  options.log_tolerance = mode.acp == AcpMode::kOff ? -HUGE_VAL : -10;
  const absl::Status status =
      RunTeacherForced(**runner, golden.ids, options, [&](int64_t first, const MatrixView& logits) {
        for (size_t b = 0; b < golden.logits.size(); ++b) {
          const auto& [begin, want] = golden.logits[b];
          for (int64_t r = 0; r < logits.rows; ++r) {
            const int64_t row = first + r - begin;
            if (row < 0 || row >= static_cast<int64_t>(want.size()) / vocab) continue;
            for (int64_t n = 0; n < vocab; ++n) {
              const double got =
                  NumberAt(logits.data, logits.dtype != DType::kF64, r * logits.row_stride + n);
              const double expected = want[static_cast<size_t>(row * vocab + n)];
              difference[b] += (got - expected) * (got - expected);
              norm[b] += expected * expected;
            }
          }
        }
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(AuditPages((*runner)->cache(), (*runner)->ops()), absl::OkStatus());
  double worst = 0;
  for (size_t b = 0; b < norm.size(); ++b) {
    SCOPED_TRACE(b);
    EXPECT_GT(norm[b], 0);
    worst = std::max(worst, std::sqrt(difference[b] / norm[b]));
  }
  if (!std::isfinite(worst)) return INFINITY;
  largest_error = std::max(largest_error, worst);
  return worst;
}

// The larger ones, dev_*, at night and on a GPU.
std::vector<std::string> SmallCases() {
  std::vector<std::string> names;
  const fs::path golden = fs::path(FOX_SOURCE_DIR) / "tests/golden";
  for (const auto& entry : fs::recursive_directory_iterator(golden)) {
    const std::string name = entry.path().lexically_relative(golden).string();
    if (name.starts_with("dev_") && !OnGpu() && !IsNightly()) continue;
    if (entry.is_directory() && fs::exists(entry.path() / "config.json")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ModelRunnerGoldenTest : public ::testing::TestWithParam<std::string> {};

// Stored logits are exact to float64, so the error is our own rounding.
TEST_P(ModelRunnerGoldenTest, Float64WithoutPruning) {
  if (OnGpu()) GTEST_SKIP() << "a GPU runs bf16 only";
  const Golden golden = LoadGolden(GetParam());
  EXPECT_LT(Error(golden, {"f64"}), 1e-9);
  EXPECT_LT(Error(golden, {"f64", AcpMode::kOff, 37, 100}), 1e-9);
  EXPECT_LT(Error(golden, {"f64", AcpMode::kOff, 1}), 1e-9);
}

TEST_P(ModelRunnerGoldenTest, Float32InEveryAcpMode) {
  if (OnGpu()) GTEST_SKIP() << "a GPU runs bf16 only";
  const Golden golden = LoadGolden(GetParam());
  for (AcpMode acp : AcpModes(golden)) {
    SCOPED_TRACE(static_cast<int>(acp));
    EXPECT_LT(Error(golden, {"f32", acp}), 1e-5);
    EXPECT_LT(Error(golden, {"f32", acp, 100, 130}), 1e-5);
    EXPECT_LT(Error(golden, {"f32", acp, 64, 0}), 1e-5);
    EXPECT_LT(Error(golden, {"f32", acp, 512, 64, true}), 1e-5);
  }
}

TEST_P(ModelRunnerGoldenTest, BFloat16InEveryAcpMode) {
  const Golden golden = LoadGolden(GetParam());
  for (AcpMode acp : AcpModes(golden)) {
    SCOPED_TRACE(static_cast<int>(acp));
    EXPECT_LT(Error(golden, {"bf16", acp}), 2e-2);
    EXPECT_LT(Error(golden, {"bf16", acp, 65, 120}), 2e-2);
    if (!OnGpu()) continue;
    EXPECT_LT(Error(golden, {"bf16", acp, 512, 0}), 2e-2);  // all by decode graphs
    EXPECT_LT(Error(golden, {"bf16", acp, 65, 120, false, true}), 2e-2);
    EXPECT_LT(Error(golden, {"bf16", acp, 100, 150, false, false, true}), 2e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelRunnerGoldenTest, ::testing::ValuesIn(SmallCases()),
                         [](const auto& test) {
                           return absl::StrReplaceAll(test.param, {{"/", "_"}});
                         });

std::vector<int32_t> Greedy(const Golden& golden, const Mode& mode) {
  auto loaded = LoadEngine(ConfigOf(golden, mode));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  Request request;
  request.prompt = golden.ids;
  request.sampling.temperature = 0;
  request.stop.max_tokens = static_cast<int32_t>(golden.greedy.size());
  request.stop.ignore_eos = true;
  EXPECT_TRUE(loaded->engine->Submit(std::move(request), 0).ok());
  std::vector<int32_t> ids;
  while (loaded->engine->HasWork()) {
    for (const RequestOutput& output : loaded->engine->Step(0)) {
      for (const SampledToken& token : output.tokens) ids.push_back(token.id);
    }
  }
  return ids;
}

// Ids must agree up to the first place where the two best logits are within 1e-3.
void ExpectGreedy(const Golden& golden, const Mode& mode) {
  const std::vector<int32_t> ids = Greedy(golden, mode);
  ASSERT_EQ(ids.size(), golden.greedy.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (golden.greedy_gaps[i] <= 1e-3) break;
    ASSERT_EQ(ids[i], golden.greedy[i]) << "token " << i;
  }
}

TEST(ModelRunnerGoldenDataTest, GreedyContinuations) {
  if (OnGpu()) GTEST_SKIP() << "a GPU runs bf16 only";
  for (const std::string& name : SmallCases()) {
    const Golden golden = LoadGolden(name);
    if (golden.greedy.empty()) continue;
    for (AcpMode acp : AcpModes(golden)) {
      SCOPED_TRACE(name);
      ExpectGreedy(golden, {"f32", acp});
    }
  }
}

bool HasWeights(const std::string& dir) {
  const fs::directory_iterator files(dir);
  return std::any_of(begin(files), end(files), [](const fs::directory_entry& file) {
    return file.path().extension() == ".safetensors";
  });
}

// Stored in float32: 2^-24 relative per element.
TEST(ModelRunnerGoldenDataTest, Books) {
  if (!OnGpu() && !IsNightly()) GTEST_SKIP() << "at night";
  if (OnGpu() && !HasWeights(LoadGolden("dev_books_a").model_dir)) {
    GTEST_SKIP() << "models/demo came without its weights, and no .gpu-pack/demo-model.tar.xz";
  }
  const Golden golden = LoadGolden("dev_books_a");
  ASSERT_TRUE(golden.stored_in_float32);
  EXPECT_LT(Error(golden, {"bf16", AcpMode::kCertified, 512, 2300}), 2e-2);
  if (OnGpu()) {
    for (AcpMode acp : AcpModes(golden)) {
      EXPECT_LT(Error(golden, {"bf16", acp, 1024, 2300}), 2e-2) << NameOf(acp);
    }
    EXPECT_LT(Error(golden, {"bf16", AcpMode::kCertified, 300, 2400, false, true, true}), 2e-2);
    return;
  }
  EXPECT_LT(Error(golden, {"f64"}), 2e-7);
  EXPECT_LT(Error(golden, {"f32", AcpMode::kCertified}), 1e-5);
  EXPECT_LT(Error(golden, {"f32", AcpMode::kPaper, 300, 2400}), 1e-5);
  ExpectGreedy(golden, {"f32", AcpMode::kCertified});
}

// Prints the error that gpu-bench copies into its report.
class ReportOfErrors : public ::testing::Environment {
 public:
  void TearDown() override {
    if (OnGpu()) std::printf("[judged] golden_error %.3e\n", largest_error);
  }
};
const auto* const kReport = ::testing::AddGlobalTestEnvironment(new ReportOfErrors);

}  // namespace
}  // namespace fox
