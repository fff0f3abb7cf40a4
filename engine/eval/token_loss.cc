// Log-softmax of one row. See token_loss.h.
#include "engine/eval/token_loss.h"

#include <algorithm>
#include <cmath>

namespace fox {
namespace {

// Calls `body` with the row's first logit, a pointer to float or double.
template <typename Body>
auto WithRow(const MatrixView& logits, int64_t row, const Body& body) {
  const int64_t at = row * logits.row_stride;
  if (logits.dtype == DType::kF64) return body(static_cast<const double*>(logits.data) + at);
  return body(static_cast<const float*>(logits.data) + at);
}

}  // namespace

double TokenLoss(const MatrixView& logits, int64_t row, int32_t token) {
  return WithRow(logits, row, [&](const auto* values) {
    const auto top = static_cast<double>(*std::max_element(values, values + logits.cols));
    double sum = 0;
    for (int64_t i = 0; i < logits.cols; ++i) sum += std::exp(static_cast<double>(values[i]) - top);
    return top + std::log(sum) - static_cast<double>(values[token]);
  });
}

int32_t BestToken(const MatrixView& logits, int64_t row) {
  return WithRow(logits, row, [&](const auto* values) {
    return static_cast<int32_t>(std::max_element(values, values + logits.cols) - values);
  });
}

}  // namespace fox
