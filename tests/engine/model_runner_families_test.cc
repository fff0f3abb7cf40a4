// A model on a backend with a decode family: which rows come in which product, what products leave
// to one another, and that the logits are those of one call for all rows, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model_runner.h"
#include "engine/timed_ops.h"
#include "kernels/cpu/cpu_ops.h"
#include "models/checkpoint.h"
#include "models/fox_model.h"
#include "models/weights.h"

namespace fox {
namespace {

struct Products {
  int decodes = 0, prefills = 0, apart = 0, gated = 0, takes = 0, leaves = 0;
};

// The CPU backend as if it had a decode family. What a product leaves for the next one is made
// NaN, and found again where it was made of: whoever reads it in another way, or in another
// place, shows.
class FamilyOps : public TimedOps {
 public:
  static constexpr int64_t kVocabulary = 512;

  FamilyOps() : TimedOps(MakeOps(), nullptr) {}

  static std::unique_ptr<Ops> MakeOps() {
    return std::make_unique<CpuOps>(CpuOptions{DType::kF32, true, 1});
  }

  bool has_decode_family() const override { return true; }

  void BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) override {
    batch_ = batch;
    TimedOps::BeginStep(batch, kv, stream);
  }

  void Linear(const LinearParams& params, Stream stream) override {
    const int64_t rows = params.in.rows;
    LinearParams plain = params;
    plain.gated.reset();
    plain.takes = plain.leaves = {};
    plain.transform.apart = false;
    Count(params);
    if (!params.takes.rows.empty()) {
      EXPECT_EQ(params.takes.rows.data, left_);
      EXPECT_EQ(params.takes.weight, left_weight_);
      EXPECT_TRUE(IsSpoiled(params.takes.rows)) << "others wrote there meanwhile";
      plain.transform = {.kind = InputTransform::Kind::kRmsNorm,
                         .weight = params.takes.weight,
                         .eps = params.takes.eps,
                         .scratch = Fresh(scratch_, rows, params.in.cols)};
    }
    if (params.in.data == gated_) {
      plain.in = ungated_;
      plain.transform = {.kind = InputTransform::Kind::kGatedAct,
                         .act = act_,
                         .scratch = Fresh(scratch_, rows, params.in.cols)};
      gated_ = nullptr;
    }
    if (params.gated) plain.out = Fresh(halves_, rows, params.weight.out());
    TimedOps::Linear(plain, stream);
    if (params.gated) {
      gated_ = params.out.data;
      act_ = *params.gated;
      ungated_ = plain.out;
      Spoil(params.out);
    }
    if (const NormedRows& leaves = params.leaves; !leaves.rows.empty()) {
      EXPECT_TRUE(params.accumulate);
      left_ = leaves.rows.data;
      left_weight_ = leaves.weight;
      Spoil(leaves.rows);
    }
  }

  Products Take() { return std::exchange(products_, {}); }

 private:
  static MatrixView Fresh(std::vector<float>& memory, int64_t rows, int64_t cols) {
    memory.assign(static_cast<size_t>(rows * cols), 0);
    return {memory.data(), DType::kF32, rows, cols, cols};
  }

  static void Spoil(const MatrixView& m) {
    ASSERT_EQ(m.dtype, DType::kF32);
    for (int64_t r = 0; r < m.rows; ++r) {
      float* row = static_cast<float*>(m.Rows(r, 1).data);
      std::fill_n(row, m.cols, std::numeric_limits<float>::quiet_NaN());
    }
  }

  static bool IsSpoiled(const MatrixView& m) {
    for (int64_t r = 0; r < m.rows; ++r) {
      const auto* row = static_cast<const float*>(m.Rows(r, 1).data);
      if (!std::all_of(row, row + m.cols, [](float x) { return std::isnan(x); })) return false;
    }
    return true;
  }

  void Count(const LinearParams& params) {
    const bool takes = !params.takes.rows.empty(), leaves = !params.leaves.rows.empty();
    ++(params.decodes ? products_.decodes : products_.prefills);
    products_.apart += params.transform.apart ? 1 : 0;
    products_.gated += params.gated ? 1 : 0;
    products_.takes += takes ? 1 : 0;
    products_.leaves += leaves ? 1 : 0;
    if (!params.decodes) {
      EXPECT_FALSE(params.transform.apart || takes || leaves);
      EXPECT_EQ(params.in.rows, batch_.num_rows - batch_.num_decodes);
      EXPECT_GE(params.in.rows, 2);
    }
    // The vocabulary's rows are decode rows, however many.
    if (params.decodes && params.weight.out() != kVocabulary) {
      EXPECT_EQ(params.in.rows, batch_.num_decodes);
    }
  }

  BatchView batch_;
  Products products_;
  const void *left_ = nullptr, *left_weight_ = nullptr, *gated_ = nullptr;
  Activation act_ = Activation::kSilu;
  MatrixView ungated_;
  std::vector<float> scratch_, halves_;
};

std::unique_ptr<ModelRunner> MakeRunner(const std::string& model, std::unique_ptr<Ops> ops) {
  const auto checkpoint =
      Checkpoint::Open(std::string(FOX_SOURCE_DIR) + "/tests/golden/" + model, {});
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  FoxWeights weights = LoadWeights(*checkpoint, *ops, DType::kF32, {});
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

class FamiliesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(FamiliesTest, RowsOfTwoFamiliesAreTheRowsOfOneCall) {
  const auto plain = MakeRunner(GetParam(), FamilyOps::MakeOps());
  auto family = std::make_unique<FamilyOps>();
  FamilyOps& ops = *family;
  const auto split = MakeRunner(GetParam(), std::move(family));
  ASSERT_EQ(plain->weights().config.vocab_size, FamilyOps::kVocabulary);
  const auto layers = static_cast<int>(plain->weights().config.num_layers);

  // Prompts alone; prompts behind few decodes; behind more, which fuse; and decodes alone.
  std::vector<int64_t> lengths(8, 0);
  for (const int decodes : {0, 3, 6, 7, 8, 8}) {
    std::vector<int64_t> ends = lengths;
    for (size_t i = 0; i < ends.size(); ++i) {
      ends[i] += static_cast<int>(i) < decodes ? 1 : 2 + 5 * static_cast<int64_t>(i);
    }
    const StepPlan plan = PlanOf(lengths, ends);
    lengths = ends;
    const std::vector<float> want = LogitsOf(*plain, plan), got = LogitsOf(*split, plan);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << decodes;
    const Products products = ops.Take();
    const bool few = decodes > 0 && decodes <= kSmallBatchRows, many = decodes > kSmallBatchRows;
    const bool prompts = decodes < 8;
    EXPECT_EQ(products.decodes, (decodes > 0 ? 4 * layers : 0) + 1);
    EXPECT_EQ(products.prefills, prompts ? 4 * layers : 0);
    EXPECT_EQ(products.apart, few ? 2 * layers - 1 : 0);
    EXPECT_EQ(products.gated, ((decodes > 0 ? 1 : 0) + (prompts ? 1 : 0)) * layers);
    EXPECT_EQ(products.takes, many ? 2 * layers - 1 : 0);
    EXPECT_EQ(products.leaves, products.takes);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FamiliesTest, ::testing::Values("dev_pro_d64", "dev_llama_d64"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace fox
