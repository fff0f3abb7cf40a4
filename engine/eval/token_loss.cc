// TokenLoss: log-softmax of one row.
#include "engine/eval/token_loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace fox {

double TokenLoss(const MatrixView& logits, int64_t row, int32_t token) {
  FOX_CHECK(0 <= row && row < logits.rows && 0 <= token && token < logits.cols);
  const auto loss = [&](const auto* values) {
    values += row * logits.row_stride;
    const auto top = static_cast<double>(*std::max_element(values, values + logits.cols));
    double sum = 0;
    for (int64_t i = 0; i < logits.cols; ++i) sum += std::exp(static_cast<double>(values[i]) - top);
    return top + std::log(sum) - static_cast<double>(values[token]);
  };
  return logits.dtype == DType::kF64 ? loss(static_cast<const double*>(logits.data))
                                     : loss(static_cast<const float*>(logits.data));
}

void AppendLosses(const std::vector<int32_t>& ids, int64_t first, const MatrixView& logits,
                  std::vector<double>* losses) {
  for (int64_t row = 0; row < logits.rows; ++row) {
    const auto next = static_cast<size_t>(first + row + 1);
    if (next < ids.size()) losses->push_back(TokenLoss(logits, row, ids[next]));
  }
}

}  // namespace fox
