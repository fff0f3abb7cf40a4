// Constants of base-two softmax: exp(x) = exp2(x log2 e) is one multiplication and one instruction.
#pragma once

namespace fox::cuda {

inline constexpr double kLog2EDouble = 1.4426950408889634;
inline constexpr float kLog2E = static_cast<float>(kLog2EDouble);
inline constexpr float kLn2 = 0.6931471805599453f;

}  // namespace fox::cuda
