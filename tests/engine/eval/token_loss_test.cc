// One row of logits: the loss against its definition.
#include "engine/eval/token_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fox {
namespace {

template <typename T>
MatrixView View(std::vector<T>& values, DType dtype, int64_t cols, int64_t row_stride) {
  const auto rows = static_cast<int64_t>(values.size()) / row_stride;
  return {values.data(), dtype, rows, cols, row_stride};
}

TEST(TokenLossTest, IsMinusTheLogarithmOfTheSoftmax) {
  // The last column is outside of the view.
  std::vector<double> wide = {0, 0, 0, 0, 99, 1.5, -2, 0.25, 3, 99};
  std::vector<float> narrow(wide.begin(), wide.end());
  const double sum = std::exp(1.5) + std::exp(-2.0) + std::exp(0.25) + std::exp(3.0);
  for (const MatrixView& logits :
       {View(wide, DType::kF64, 4, 5), View(narrow, DType::kF32, 4, 5)}) {
    for (int32_t token = 0; token < 4; ++token) {
      SCOPED_TRACE(token);
      EXPECT_NEAR(TokenLoss(logits, 0, token), std::log(4.0), 1e-15);
      const double probability = std::exp(wide[5 + static_cast<size_t>(token)]) / sum;
      EXPECT_NEAR(TokenLoss(logits, 1, token), -std::log(probability), 1e-14);
    }
  }
}

TEST(TokenLossTest, HoldsWhereExpWouldOverflow) {
  std::vector<float> values = {3e4f, 3e4f, -3e4f};
  const MatrixView logits = View(values, DType::kF32, 3, 3);
  EXPECT_NEAR(TokenLoss(logits, 0, 1), std::log(2.0), 1e-11);  // 2^-53 of 3e4, twice
  EXPECT_NEAR(TokenLoss(logits, 0, 2), 6e4 + std::log(2.0), 1e-9);
}

}  // namespace
}  // namespace fox
