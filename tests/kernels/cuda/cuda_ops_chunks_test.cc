// The results of a prompt and the tokens after it on the device are bit for bit independent of how
// the prompt was cut (at multiples of 128 tokens) and of other sequences in the steps: outputs,
// queries, pages, summaries, lists and running state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/paging/acp.h"
#include "tests/kernels/cuda/device_kv.h"
#include "tests/kernels/head_sequence.h"

namespace fox::cuda::testing {
namespace {

using fox::testing::StepRows;

constexpr int64_t kChunkMultiple = 128, kNeighbourTokens = 1900;
constexpr int kSlots = 5, kSlot = 2;  // of the compared sequence; the others are its neighbours

struct ChunkCase {
  std::string name;
  AcpMode acp = AcpMode::kCertified;
  int head_dim = 64;
  bool norm = true;
  bool shift = false, rope = false;
  bool portable = false;
  int64_t prompt = 4300;  // the last page has both kinds of rows
  bool foxified = false;  // caps in place of norms, and sinks
  DType pages = DType::kBF16;
  int kv_heads = 3;  // of 6 heads
};
std::ostream& operator<<(std::ostream& out, const ChunkCase& c) { return out << c.name; }

// All results of a run for the sequence.
struct Trace {
  std::vector<double> queries, outputs, log_sums;  // of all rows
  Contents cache;
  std::vector<int32_t> first_live;
  LostMass lost;
};

// One layer of heads, most of them grouped, from local to global ones, with sequences of random
// rows.
class ChunkRun {
 public:
  // `one_list`: pages in 8 bits are widened a list at a time.
  ChunkRun(const ChunkCase& c, bool one_list)
      : case_(c), constants_(ConstantsOf(c)), kv_(ShapeOf(c, constants_.shape)) {
    std::string error;
    CudaOptions options;
    options.portable = c.portable;
    ops_ = CudaOps::Create(options, &error);
    EXPECT_NE(ops_, nullptr) << error;
    if (one_list) ops_->state().wide_bytes = 0;
    ops_->Reserve({.shape = kv_.view.shape,
                   .max_rows = c.prompt + kSlots * kNeighbourTokens,
                   .max_seqs = kSlots});
    const BatchView mixed{.num_seqs = 2, .num_rows = 3, .num_decodes = 1};
    EXPECT_TRUE(c.kv_heads == 3 || !HoldsFourBlocks() || ops_->state().AttendsBeside(mixed));
    fox::testing::RunOptions run_options;
    run_options.acp = c.acp;
    // Without norms the bound on keys is some dense matrix, which bounds nothing; that does not
    // matter here.
    QueryBound bound;
    if (!c.norm) {
      const auto heads = static_cast<size_t>(constants_.shape.q_heads);
      const auto d = static_cast<size_t>(c.head_dim);
      std::vector<float> dense(heads * d * d);
      std::mt19937_64 rng(5);
      std::normal_distribution<float> normal(1.0f, 0.15f);
      for (float& x : dense) x = 0.1f * normal(rng);
      bound.dense = memory_.Copy(dense);
      bound.scale = kKeyNormInflation;
      bound.self_logit_bound = memory_.Copy(constants_.self_logit_bound);
      bound.max_logit_bound = memory_.Copy(constants_.max_logit_bound);
      bound.max_norm_product = memory_.Copy(std::vector<double>(heads, 40.0));
      run_options.bound = &bound;
    }
    run_ = std::make_unique<fox::testing::HeadRun>(*ops_, kv_.view, constants_, run_options);
  }

  int64_t length() const { return lengths_[kSlot]; }

  // One step: the next `rows` rows of the sequence, 0: it is not in the step; with `beside`, rows
  // of the others, decodes and a chunk. Sequences with one row come first.
  void Step(int64_t rows, bool beside) {
    std::vector<StepRows> entries;
    if (rows > 0) entries.push_back({kSlot, lengths_[kSlot], rows});
    for (int slot = 0; beside && slot < kSlots; ++slot) {
      if (slot == kSlot) continue;
      const int64_t left = kNeighbourTokens - lengths_[static_cast<size_t>(slot)];
      const int64_t count = std::min(left, slot == 3 ? 3 * kChunkMultiple : 1);
      if (count > 0) entries.push_back({slot, lengths_[static_cast<size_t>(slot)], count});
    }
    std::stable_partition(entries.begin(), entries.end(),
                          [](const StepRows& entry) { return entry.rows == 1; });
    Run(entries);
  }

  Trace Finish() {
    const std::vector<int32_t> first = kv_.first_live.ToHost();
    const int64_t list = kv_.view.ListIndex(kSlot, 0, 0);
    trace_.first_live.assign(first.begin() + list, first.begin() + list + kv_.view.shape.kv_heads);
    trace_.cache = kv_.ContentsOf(kSlot);
    EXPECT_EQ(kv_.Fault(), PoolFault::kNone);
    EXPECT_EQ(ops_->queue()->error(), nullptr) << ops_->queue()->error();
    return trace_;
  }

 private:
  // True if four blocks of decode attention find room on an SM: each takes 33 KiB of shared memory,
  // and CUDA one more.
  static bool HoldsFourBlocks() {
    constexpr int kBytes = 4 * (33 + 1) * 1024;
    int bytes = 0;
    EXPECT_EQ(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0),
              cudaSuccess);
    return bytes >= kBytes;
  }

  static fox::testing::HeadInputs ConstantsOf(const ChunkCase& c) {
    fox::testing::HeadShape shape{
        6, c.kv_heads, c.head_dim, c.shift, c.shift, c.norm && !c.foxified, c.rope};
    shape.sink = shape.norm_caps = c.foxified;
    shape.output_norm = shape.output_gate = true;
    return RandomInputs(shape, 0, 5, {0});
  }
  static PagedKvShape ShapeOf(const ChunkCase& c, const fox::testing::HeadShape& heads) {
    PagedKvShape shape = ShapeFor(heads, c.prompt + 1000, c.pages, kSlots);
    shape.num_pages = shape.kv_heads * (shape.max_pages + kSlots * PagesFor(kNeighbourTokens));
    return shape;
  }

  static void Add(const std::vector<double>& from, int64_t first, int64_t count,
                  std::vector<double>& to) {
    to.insert(to.end(), from.begin() + first, from.begin() + first + count);
  }

  // A row of the fused projection is a function of its slot and place alone.
  void AddRow(int slot, int64_t position, std::vector<double>& rows) const {
    static constexpr double kGateMeans[] = {9, 10, 7, 5, 1, 3};
    std::mt19937_64 rng(static_cast<uint64_t>(position) * kSlots + static_cast<uint64_t>(slot));
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < constants_.columns(); ++i) {
      const int64_t gate = i - constants_.gate_column();
      rows.push_back(normal(rng) + (gate >= 0 ? kGateMeans[gate] : 0));
    }
  }

  void Run(const std::vector<StepRows>& entries) {
    if (entries.empty()) return;
    std::vector<double> rows;
    int64_t row = 0, own = 0, own_rows = 0, place = -1;
    for (const StepRows& entry : entries) {
      if (entry.slot == kSlot) own = row, own_rows = entry.rows, place = &entry - entries.data();
      for (int64_t r = 0; r < entry.rows; ++r) AddRow(entry.slot, entry.position + r, rows);
      row += entry.rows;
      lengths_[static_cast<size_t>(entry.slot)] += entry.rows;
    }
    const fox::testing::HeadRun::Result step = run_->Step(entries, rows);
    const int64_t hidden = constants_.shape.hidden(), heads = constants_.shape.q_heads;
    for (int64_t r = own; r < own + own_rows; ++r) {
      Add(step.projection, r * constants_.columns(), hidden, trace_.queries);
    }
    Add(step.out, own * hidden, own_rows * hidden, trace_.outputs);
    Add(step.lse, own * heads, own_rows * heads, trace_.log_sums);
    if (place >= 0) trace_.lost.Add(step.lost_mass[static_cast<size_t>(place)]);
  }

  const ChunkCase case_;
  const fox::testing::HeadInputs constants_;
  DeviceKv kv_;
  DeviceMemory memory_;
  std::unique_ptr<CudaOps> ops_;
  std::unique_ptr<fox::testing::HeadRun> run_;
  std::vector<int64_t> lengths_ = std::vector<int64_t>(kSlots, 0);
  Trace trace_;
};

enum class Cut : uint8_t { kWhole, kShortest, kRandom };

// The prompt, then tokens one by one, past the end of a page.
Trace RunOf(const ChunkCase& c, Cut cut, bool beside, uint64_t seed, bool one_list = false) {
  std::mt19937_64 rng(seed);
  ChunkRun run(c, one_list);
  while (run.length() < c.prompt) {
    const int64_t left = c.prompt - run.length();
    int64_t rows = left;
    if (cut == Cut::kShortest) rows = kChunkMultiple;
    if (cut == Cut::kRandom) {
      rows = kChunkMultiple * (1 + static_cast<int64_t>(rng() % (rng() % 2 == 0 ? 30 : 4)));
    }
    if (left <= rows + 1) rows = left;
    if (beside && rng() % 4 == 0) run.Step(0, true);
    run.Step(rows, beside);
  }
  for (int i = 0; i < 60; ++i) run.Step(1, beside && i % 3 != 0);
  return run.Finish();
}

// The first place where two runs differ says where to look.
void ExpectSame(const std::vector<double>& want, const std::vector<double>& got, const char* what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  const auto at = std::mismatch(want.begin(), want.end(), got.begin()).first - want.begin();
  EXPECT_EQ(at, static_cast<std::ptrdiff_t>(want.size()))
      << what << " differ first at " << at << " of " << want.size();
}

void ExpectSameTrace(const Trace& want, const Trace& got) {
  EXPECT_EQ(Difference(got.cache, want.cache), "");
  ExpectSame(want.queries, got.queries, "queries");
  ExpectSame(want.outputs, got.outputs, "outputs");
  ExpectSame(want.log_sums, got.log_sums, "log sums");
  // Sums are of the same numbers, in another order from step to step.
  EXPECT_EQ(want.lost.max_log, got.lost.max_log);
  EXPECT_EQ(want.lost.max_log_shift, got.lost.max_log_shift);
  EXPECT_NEAR(want.lost.sum, got.lost.sum, 1e-12 * want.lost.sum);
  EXPECT_NEAR(want.lost.shift_sum, got.lost.shift_sum, 1e-12 * want.lost.shift_sum);
}

class CudaOpsChunksTest : public ::testing::TestWithParam<ChunkCase> {};

TEST_P(CudaOpsChunksTest, NeitherChunksNorNeighboursChangeABit) {
  const ChunkCase& c = GetParam();
  const Trace whole = RunOf(c, Cut::kWhole, false, 1);
  if (c.acp == AcpMode::kOff || (c.acp == AcpMode::kPaper && !c.norm)) {
    EXPECT_EQ(whole.first_live, std::vector<int32_t>(whole.first_live.size(), 0));
  } else if (c.norm) {
    EXPECT_GT(whole.first_live.back(), 0) << "the last list's heads are local";
    EXPECT_GT(whole.lost.sum, 0);
    EXPECT_GT(whole.lost.shift_sum, 0);
  }
  const auto expect = [&](Cut cut, bool beside, uint64_t seed, const char* what) {
    SCOPED_TRACE(what);
    ExpectSameTrace(whole, RunOf(c, cut, beside, seed));
  };
  expect(Cut::kRandom, true, 4, "random chunks beside others");
  if (c.pages == DType::kE4M3) {
    SCOPED_TRACE("whole, beside others, a list at a time");
    ExpectSameTrace(whole, RunOf(c, Cut::kWhole, true, 3, /*one_list=*/true));
  }
  if (c.prompt > cuda::kFirstSplitTile * cuda::kTileRows) return;  // a run takes seconds
  expect(Cut::kShortest, false, 1, "chunks of 128");
  expect(Cut::kRandom, false, 2, "random chunks");
  expect(Cut::kWhole, true, 3, "whole, beside others");
}

std::vector<ChunkCase> ChunkCases() {
  std::vector<ChunkCase> cases;
  for (const int d : {64, 128}) {
    const std::string suffix = std::to_string(d);
    cases.push_back({"Certified" + suffix, AcpMode::kCertified, d});
    cases.push_back({"Paper" + suffix, AcpMode::kPaper, d});
    cases.push_back({"Off" + suffix, AcpMode::kOff, d});
    // The last tiles' KV loops are split.
    cases.push_back({"Long" + suffix, d == 64 ? AcpMode::kCertified : AcpMode::kOff, d});
    cases.back().prompt = cuda::kFirstSplitTile * cuda::kTileRows + 2000;
    cases.push_back({"CertifiedWithoutNorm" + suffix, AcpMode::kCertified, d, false});
    cases.push_back({"PaperWithoutNorm" + suffix, AcpMode::kPaper, d, false});
    cases.push_back({"ShiftAndRotation" + suffix, AcpMode::kCertified, d, true, true, true});
    cases.push_back({"Foxified" + suffix, AcpMode::kCertified, d, true, false, true});
    cases.back().foxified = true;
    cases.push_back({"Portable" + suffix, AcpMode::kCertified, d, true, false, false, true, 3000});
  }
  // With a kv head for each query head four blocks of decode attention or more fit an SM, so decode
  // attention runs on the second stream, beside the prompts' kernels.
  for (const bool shift : {false, true}) {
    cases.push_back({shift ? "BesideShifted" : "Beside", AcpMode::kCertified, 64, true, shift});
    cases.back().kv_heads = 6;
  }
  // Whole pages, a prompt that ends with two tokens of a tile, and one with a page of its last
  // tile.
  cases.push_back({"WholeTiles", AcpMode::kCertified, 64, true, true, false, false, 2048});
  cases.push_back({"TwoTokensMore", AcpMode::kCertified, 64, true, true, false, false, 2050});
  cases.push_back({"WholePage", AcpMode::kCertified, 64, true, true, false, false, 2112});
  // Pages in 8 bits: the bounds of those in bf16 serve as well here.
  for (size_t i = 0, count = cases.size(); i < count; ++i) {
    cases.push_back(cases[i]);
    cases.back().name += "In8Bits";
    cases.back().pages = DType::kE4M3;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaOpsChunksTest, ::testing::ValuesIn(ChunkCases()),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace fox::cuda::testing
