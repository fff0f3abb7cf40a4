// TokenLoss: the loss of the next token in one row of logits, in float64.
#pragma once

#include <cstdint>

#include "kernels/core/matrix_view.h"

namespace fox {

// -log softmax(row)[token], in nats. logits: host memory, float32 or float64.
double TokenLoss(const MatrixView& logits, int64_t row, int32_t token);

}  // namespace fox
