// The hints that a model gives a backend: the decode rows of each product, and the norm that comes
// next. Golden tests check the arithmetic.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/run/model_runner.h"
#include "kernels/cpu/cpu_ops.h"
#include "models/checkpoint/checkpoint.h"
#include "models/weights.h"
#include "tests/engine/run/forwarding_ops.h"

namespace fox {
namespace {

constexpr int64_t kVocabulary = 512;

std::unique_ptr<Ops> RowIndependentOps() {
  return std::make_unique<CpuOps>(CpuOptions{DType::kF32, true, 1});
}

// Multiplies decode rows and prefill rows separately, and checks that hints come true.
class SplittingOps : public ForwardingOps {
 public:
  SplittingOps() : ForwardingOps(RowIndependentOps()) {}

  void BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) override {
    decodes_ = batch.num_decodes;
    ForwardingOps::BeginStep(batch, kv, stream);
  }

  void Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
             Stream stream) override {
    hinted_ = {};
    ForwardingOps::Embed(batch, table, out, stream);
  }

  void Linear(const LinearParams& params, Stream stream) override {
    const int64_t rows = params.in.rows;
    EXPECT_EQ(params.decode_rows, params.weight.out() == kVocabulary ? rows : decodes_);
    if (params.in.data == hinted_.data) {
      ASSERT_TRUE(params.norm);
      EXPECT_EQ(params.norm->weight, next_norm_.weight);
      EXPECT_TRUE(Bytes(params.in) == hinted_bytes_);
      ++hints_used_;
    }
    LinearParams part = params;
    part.next_norm.reset();
    const int64_t decodes = params.decode_rows;
    for (const auto& [first, count] : {std::pair{int64_t{0}, decodes}, {decodes, rows - decodes}}) {
      part.in = params.in.Rows(first, count);
      part.out = params.out.Rows(first, count);
      ForwardingOps::Linear(part, stream);
    }
    if (!params.next_norm) return;
    EXPECT_TRUE(params.accumulate && !params.norm);
    hinted_ = params.out;
    hinted_bytes_ = Bytes(hinted_);
    next_norm_ = *params.next_norm;
  }

  int TakeHintsUsed() { return std::exchange(hints_used_, 0); }

 private:
  static std::string Bytes(const MatrixView& m) {
    return {static_cast<const char*>(m.data),
            static_cast<size_t>(m.rows * m.row_stride) * SizeOf(m.dtype)};
  }

  int64_t decodes_ = 0;
  MatrixView hinted_;
  std::string hinted_bytes_;
  RmsNorm next_norm_;
  int hints_used_ = 0;
};

std::unique_ptr<ModelRunner> MakeRunner(const std::string& model, std::unique_ptr<Ops> ops) {
  const auto checkpoint =
      Checkpoint::Open(std::string(FOX_SOURCE_DIR) + "/tests/golden/" + model, {});
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  FoxWeights weights =
      LoadWeights(*checkpoint, *ops, DType::kF32, Quantization::kNone, DType::kF32, {});
  EXPECT_EQ(weights.config.vocab_size, kVocabulary);
  RunnerOptions options;
  options.max_model_len = 256;
  options.num_pages = 512;
  return std::make_unique<ModelRunner>(std::move(ops), std::move(weights), options);
}

// Sequences in slots [0, ends.size()) that had begin[i] tokens and get up to ends[i]; the last row
// of each wants logits.
StepPlan PlanOf(const std::vector<int64_t>& begins, const std::vector<int64_t>& ends) {
  StepPlan plan;
  for (size_t i = 0; i < ends.size(); ++i) {
    PlannedSequence& seq = plan.sequences.emplace_back();
    seq.slot = static_cast<int32_t>(i);
    seq.position = begins[i];
    for (int64_t t = begins[i]; t < ends[i]; ++t) {
      seq.token_ids.push_back(static_cast<int32_t>((t * 37 + static_cast<int64_t>(i) * 11) % 500));
    }
    seq.logit_rows = {static_cast<int32_t>(ends[i] - begins[i] - 1)};
  }
  return plan;
}

std::vector<float> LogitsOf(ModelRunner& runner, const StepPlan& plan) {
  EXPECT_TRUE(runner.Run(plan).ok());
  const MatrixView& logits = runner.logits();
  const auto* first = static_cast<const float*>(logits.data);
  return {first, first + logits.rows * logits.cols};
}

class ModelRowsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelRowsTest, SaysWhichRowsDecodeAndWhichNormComesNext) {
  const auto plain = MakeRunner(GetParam(), RowIndependentOps());
  auto splitting = std::make_unique<SplittingOps>();
  SplittingOps& ops = *splitting;
  const auto split = MakeRunner(GetParam(), std::move(splitting));
  const int layers = plain->weights().config.num_layers;

  // Prompts alone, prompts behind decodes, and decodes alone, all of which want logits.
  std::vector<int64_t> lengths(8, 0);
  for (const int decodes : {0, 3, 7, 8, 8}) {
    SCOPED_TRACE(decodes);
    std::vector<int64_t> ends = lengths;
    for (size_t i = 0; i < ends.size(); ++i) {
      ends[i] += static_cast<int>(i) < decodes ? 1 : 2 + 5 * static_cast<int64_t>(i);
    }
    const StepPlan plan = PlanOf(lengths, ends);
    lengths = ends;
    const std::vector<float> want = LogitsOf(*plain, plan), got = LogitsOf(*split, plan);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << decodes;
    EXPECT_EQ(ops.TakeHintsUsed(), 2 * layers - (decodes == 8 ? 0 : 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ModelRowsTest, ::testing::Values("dev_pro_d64", "dev_llama_d64"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace fox
