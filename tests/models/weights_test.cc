// Rounded weights against the checkpoint's: which weights are rounded, and that the bounds on
// logits are made of the rounded weights.
#include "models/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/load_element.h"
#include "kernels/core/weight_format.h"
#include "kernels/cpu/cpu_ops.h"

namespace fox {
namespace {

using Row = std::vector<float>;
using Rows = std::vector<Row>;

struct Packed {
  Rows rows;
  int64_t rounded = 0;  // the first rows
  std::optional<WeightFormat> format;

  bool operator==(const Packed&) const = default;
};

// Keeps the packed weights in the order of weights.cc: for each layer projection, o, gate_up and
// down; before them the vocabulary's, once if tied or unless in blocks.
class PackingOps : public CpuOps {
 public:
  PackingOps() : CpuOps(CpuOptions{DType::kF32, true, 1}) {}

  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override {
    Keep(weight, 0, std::nullopt);
    return CpuOps::Pack(weight);
  }
  std::unique_ptr<PackedWeight> PackRounded(const MatrixView& weight, int64_t rounded_rows,
                                            WeightFormat format) override {
    Keep(weight, rounded_rows, format);
    return CpuOps::Pack(weight);
  }

  std::vector<Packed> packed;

 private:
  void Keep(const MatrixView& weight, int64_t rounded, std::optional<WeightFormat> format) {
    Packed& kept = packed.emplace_back();
    kept.rounded = rounded;
    kept.format = format;
    for (int64_t n = 0; n < weight.rows; ++n) {
      LoadElements(weight, n, kept.rows.emplace_back(static_cast<size_t>(weight.cols)).data());
    }
  }
};

constexpr Quantization kQuantizations[] = {Quantization::kFp8, Quantization::kQ8,
                                           Quantization::kQ4};

Rows RowsOf(const HostTensor& tensor) {
  Rows rows;
  const int64_t cols = tensor.shape.back();
  for (int64_t first = 0; first < tensor.size(); first += cols) {
    ReadElements(tensor, first, cols, rows.emplace_back(static_cast<size_t>(cols)).data());
  }
  return rows;
}

// A matrix with its rows rounded.
Row Rounded(const HostTensor& tensor, WeightFormat format) {
  Row all;
  for (Row& row : RowsOf(tensor)) {
    RoundRow(format, row.data(), static_cast<int64_t>(row.size()));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

// Compares the bounds of all layers with the bounds of a layer whose tensors are rounded here.
void ExpectBounds(const Checkpoint& checkpoint, Quantization quantization) {
  PackingOps ops;
  const FoxWeights weights =
      LoadWeights(checkpoint, ops, DType::kF32, quantization, DType::kF32, {});
  const ModelConfig& config = checkpoint.config();
  const auto heads = static_cast<size_t>(config.num_heads);
  for (size_t n = 0; n < weights.layers.size(); ++n) {
    SCOPED_TRACE(n);
    LayerTensors layer = checkpoint.layers()[n];
    const Row q = Rounded(layer.q_proj, FormatOf(quantization));
    const Row k = Rounded(layer.k_proj, FormatOf(quantization));
    layer.q_proj = {reinterpret_cast<const std::byte*>(q.data()), DType::kF32, layer.q_proj.shape};
    layer.k_proj = {reinterpret_cast<const std::byte*>(k.data()), DType::kF32, layer.k_proj.shape};
    const HostQueryBound bound = MakeQueryBound(config, layer, DType::kF32, IsBlocks(quantization));
    const QueryBound& loaded = weights.layers[n].bound.view();
    EXPECT_EQ(weights.layers[n].bound.min_log_gate(), bound.min_log_gate);
    EXPECT_EQ(bound.max_norm_product,
              std::vector<double>(loaded.max_norm_product, loaded.max_norm_product + heads));
    for (const auto& [wanted, got] : {std::pair{&bound.diagonal, loaded.diagonal},
                                      {&bound.dense, loaded.dense},
                                      {&bound.absolute, loaded.absolute}}) {
      EXPECT_EQ(*wanted, std::vector<float>(got, got + wanted->size())) << wanted->size();
    }
  }
}

class QuantizedWeightsTest : public ::testing::TestWithParam<const char*> {
 protected:
  Checkpoint Open() const {
    auto checkpoint =
        Checkpoint::Open(std::string(FOX_SOURCE_DIR) + "/tests/golden/" + GetParam(), {});
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return *std::move(checkpoint);
  }
};

TEST_P(QuantizedWeightsTest, RoundsAllRowsExceptGatesAndShifts) {
  const Checkpoint checkpoint = Open();
  const ModelConfig& config = checkpoint.config();
  const int64_t attention = (config.output_gate ? 2 : 1) * config.q_size() + 2 * config.kv_size();
  const bool tied = checkpoint.embeddings().data == checkpoint.lm_head().data;
  PackingOps plain;
  LoadWeights(checkpoint, plain, DType::kF32, Quantization::kNone, DType::kF32, {});
  ASSERT_EQ(plain.packed.size(), static_cast<size_t>(4 * config.num_layers + 1));
  for (const Quantization quantization : kQuantizations) {
    SCOPED_TRACE(static_cast<int>(quantization));
    PackingOps ops;
    LoadWeights(checkpoint, ops, DType::kF32, quantization, DType::kF32, {});
    const size_t first = IsBlocks(quantization) && !tied ? 2 : 1;  // matrices of the vocabulary
    ASSERT_EQ(ops.packed.size(), plain.packed.size() - 1 + first);
    for (size_t i = 0; i < ops.packed.size(); ++i) {
      SCOPED_TRACE(i);
      const bool vocabulary = i < first;
      Packed wanted;
      if (vocabulary && i == 1) {
        wanted.rows = RowsOf(checkpoint.embeddings());
      } else {
        wanted.rows = plain.packed[vocabulary ? 0 : i - first + 1].rows;
      }
      if (!vocabulary || IsBlocks(quantization)) {
        const bool projection = !vocabulary && (i - first) % 4 == 0;
        wanted.rounded = projection ? attention : static_cast<int64_t>(wanted.rows.size());
        wanted.format = vocabulary ? WeightFormat::kQ8 : FormatOf(quantization);
      }
      EXPECT_TRUE(ops.packed[i] == wanted)
          << ops.packed[i].rounded << " rows of " << ops.packed[i].rows.size();
    }
  }
}

TEST_P(QuantizedWeightsTest, BoundsHoldForTheRoundedWeights) {
  const Checkpoint checkpoint = Open();
  for (const Quantization quantization : kQuantizations) {
    SCOPED_TRACE(static_cast<int>(quantization));
    ExpectBounds(checkpoint, quantization);
  }
}

// cuBLASLt's fast kernels want outputs in whole units of 16 bytes, which gates of 9 or 28 heads are
// not by themselves.
TEST(ProjectionColumnsTest, AreAMultipleOfEight) {
  for (const int heads : {1, 9, 14, 28, 32}) {
    SCOPED_TRACE(heads);
    ModelConfig config;
    config.num_heads = heads;
    config.num_kv_heads = 1;
    config.head_dim = 64;
    const ProjectionColumns columns = ColumnsOf(config);
    const int64_t used = config.q_size() + 2 * config.kv_size() + heads;
    EXPECT_EQ(columns.fgate, used - heads);
    EXPECT_EQ(columns.total, (used + 7) / 8 * 8);
  }
}

// A layer whose norm weights in one block are far apart, which its projection makes up for:
// rounding the large inputs there errs by more than the small ones are.
TEST(BlockInputsTest, TheBoundPaysForTheirRounding) {
  constexpr int64_t kHidden = 64, kDim = 32, kRows = 40;
  constexpr float kSmall = 0x1p-18F;
  ModelConfig config;
  config.hidden_size = kHidden;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = static_cast<int>(kDim);
  config.forget_gate = ForgetGate::kFull;
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal;
  Row norm(kHidden, 1), weight(kHidden * kHidden), x(kRows * kHidden), y(kRows * kHidden);
  for (float& value : weight) value = normal(rng) / 8;
  for (float& value : x) value = normal(rng);
  for (int64_t n = 0; n < kHidden; ++n) {
    norm[1] = kSmall;
    for (int64_t k = 0; k < 32; ++k)
      weight[static_cast<size_t>(n * kHidden + k)] *= k == 1 ? 1.0F : 0.0F;
    weight[static_cast<size_t>(n * kHidden + 1)] /= kSmall;
    RoundRow(WeightFormat::kQ8, weight.data() + n * kHidden, kHidden);
  }
  const HostTensor matrix{
      reinterpret_cast<const std::byte*>(weight.data()), DType::kF32, {kHidden, kHidden}};
  LayerTensors layer;
  layer.attn_norm = {reinterpret_cast<const std::byte*>(norm.data()), DType::kF32, {kHidden}};
  layer.q_proj = layer.k_proj = matrix;
  const HostQueryBound unaware = MakeQueryBound(config, layer, DType::kF32);
  const HostQueryBound bound = MakeQueryBound(config, layer, DType::kF32, /*in_blocks=*/true);
  CpuOps ops({.threads = 1});
  const auto packed = ops.PackRounded({weight.data(), DType::kF32, kHidden, kHidden, kHidden},
                                      kHidden, WeightFormat::kQ8);
  ops.Linear({.in = {x.data(), DType::kF32, kRows, kHidden, kHidden},
              .norm = RmsNorm{norm.data(), 0},
              .weight = *packed,
              .out = {y.data(), DType::kF32, kRows, kHidden, kHidden}},
             nullptr);
  double worst = 0, worst_unaware = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    double squares = 0;
    for (int64_t k = 0; k < kHidden; ++k) {
      const auto value = static_cast<double>(x[static_cast<size_t>(r * kHidden + k)]);
      squares += value * value / kHidden;
    }
    for (int64_t n = 0; n < kHidden; ++n) {
      double want = 0;
      for (int64_t k = 0; k < kHidden; ++k) {
        want += static_cast<double>(x[static_cast<size_t>(r * kHidden + k)]) / std::sqrt(squares) *
                static_cast<double>(norm[static_cast<size_t>(k)]) *
                static_cast<double>(weight[static_cast<size_t>(n * kHidden + k)]);
      }
      const auto at = static_cast<size_t>(n);
      const double error =
          std::abs(static_cast<double>(y[static_cast<size_t>(r * kHidden + n)]) - want) /
          std::sqrt(kDim);
      worst = std::max(worst, error / static_cast<double>(bound.absolute[at]));
      worst_unaware = std::max(worst_unaware, error / static_cast<double>(unaware.absolute[at]));
    }
  }
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst_unaware, 1);  // it does matter
}

INSTANTIATE_TEST_SUITE_P(Models, QuantizedWeightsTest,
                         ::testing::Values("dev_pro_d64", "tiny_fla_plain", "tiny_rope_llama",
                                           "tiny_norm_no_gate_tied"));

}  // namespace
}  // namespace fox
