// TokenLoss: the loss of the next token in one row of logits, in float64.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/matrix_view.h"

namespace fox {

// -log softmax(row)[token], in nats. logits: host memory, float32 or float64.
double TokenLoss(const MatrixView& logits, int64_t row, int32_t token);

// Appends the losses of the tokens after those of the rows, which belong to ids[first], ... The
// last one of `ids` has no token after it.
void AppendLosses(const std::vector<int32_t>& ids, int64_t first, const MatrixView& logits,
                  std::vector<double>* losses);

}  // namespace fox
