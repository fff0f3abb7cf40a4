// From head_dim at run time to kernels that have it as a template parameter.
#pragma once

#include <cuda_runtime_api.h>

namespace fox::cuda {

// body.operator()<head_dim>() for a head_dim of kLeast, 2 kLeast, ... 128: a launch, whose error it
// gives; cudaErrorInvalidValue for any other.
template <int kLeast = 16, typename Body>
cudaError_t DispatchHeadDim(int head_dim, const Body& body) {
  if (head_dim == kLeast) return body.template operator()<kLeast>();
  if constexpr (kLeast < 128) {
    return DispatchHeadDim<2 * kLeast>(head_dim, body);
  } else {
    return cudaErrorInvalidValue;
  }
}

}  // namespace fox::cuda
