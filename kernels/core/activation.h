// The activation functions of gates.
#pragma once

#include <cstdint>

namespace fox {

enum class Activation : uint8_t { kSigmoid, kSilu };  // silu(x) = x * sigmoid(x)

}  // namespace fox
