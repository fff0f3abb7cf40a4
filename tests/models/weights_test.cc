// Weights of 8 bits against the checkpoint's: which weights are rounded, and that the bounds on
// logits are made of the rounded weights.
#include "models/weights.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/e4m3.h"
#include "kernels/core/load_element.h"
#include "kernels/cpu/cpu_ops.h"

namespace fox {
namespace {

using Row = std::vector<float>;
using Rows = std::vector<Row>;

// Keeps the packed weights in the order of weights.cc: for each layer projection, o, gate_up and
// down; then lm_head.
class PackingOps : public CpuOps {
 public:
  PackingOps() : CpuOps(CpuOptions{DType::kF32, true, 1}) {}

  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override {
    Rows& rows = packed.emplace_back();
    for (int64_t n = 0; n < weight.rows; ++n) {
      LoadElements(weight, n, rows.emplace_back(static_cast<size_t>(weight.cols)).data());
    }
    return CpuOps::Pack(weight);
  }

  std::vector<Rows> packed;
};

Row Rounded(const Row& row) {
  std::vector<uint8_t> codes(row.size());
  const int exponent = EncodeE4M3(row.data(), static_cast<int64_t>(row.size()), codes.data());
  Row rounded;
  for (const uint8_t code : codes) {
    rounded.push_back(static_cast<float>(E4M3Value(code, exponent)));
  }
  return rounded;
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

TEST_P(QuantizedWeightsTest, RoundsAllRowsExceptGatesShiftsAndTheVocabulary) {
  const Checkpoint checkpoint = Open();
  PackingOps plain, fp8;
  LoadWeights(checkpoint, plain, DType::kF32, Quantization::kNone, DType::kF32, {});
  LoadWeights(checkpoint, fp8, DType::kF32, Quantization::kFp8, DType::kF32, {});
  const ModelConfig& config = checkpoint.config();
  const int64_t rounded = (config.output_gate ? 2 : 1) * config.q_size() + 2 * config.kv_size();
  ASSERT_EQ(plain.packed.size(), static_cast<size_t>(4 * config.num_layers + 1));
  ASSERT_EQ(fp8.packed.size(), plain.packed.size());
  for (size_t i = 0; i < plain.packed.size(); ++i) {
    const Rows& rows = plain.packed[i];
    ASSERT_EQ(fp8.packed[i].size(), rows.size()) << i;
    const bool projection = i % 4 == 0, vocabulary = i + 1 == plain.packed.size();
    for (size_t n = 0; n < rows.size(); ++n) {
      const bool kept = vocabulary || (projection && n >= static_cast<size_t>(rounded));
      ASSERT_EQ(fp8.packed[i][n], kept ? rows[n] : Rounded(rows[n])) << i << " row " << n;
    }
  }
}

TEST_P(QuantizedWeightsTest, BoundsHoldForTheRoundedWeights) {
  const Checkpoint checkpoint = Open();
  PackingOps ops;
  const FoxWeights weights =
      LoadWeights(checkpoint, ops, DType::kF32, Quantization::kFp8, DType::kF32, {});
  const ModelConfig& config = checkpoint.config();
  const auto heads = static_cast<size_t>(config.num_heads);
  for (size_t n = 0; n < weights.layers.size(); ++n) {
    SCOPED_TRACE(n);
    LayerTensors layer = checkpoint.layers()[n];
    // The rows of the packed projection as tensors.
    Row q, k;
    const Rows& projection = ops.packed[4 * n];
    for (int64_t row = 0; row < config.q_size() + config.kv_size(); ++row) {
      const Row& from = projection[static_cast<size_t>(row)];
      Row& to = row < config.q_size() ? q : k;
      to.insert(to.end(), from.begin(), from.end());
    }
    layer.q_proj = {reinterpret_cast<const std::byte*>(q.data()), DType::kF32, layer.q_proj.shape};
    layer.k_proj = {reinterpret_cast<const std::byte*>(k.data()), DType::kF32, layer.k_proj.shape};
    const HostQueryBound bound = MakeQueryBound(config, layer, DType::kF32);
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

INSTANTIATE_TEST_SUITE_P(Models, QuantizedWeightsTest,
                         ::testing::Values("dev_pro_d64", "tiny_fla_plain", "tiny_rope_llama"));

}  // namespace
}  // namespace fox
