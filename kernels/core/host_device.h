// FOX_HOST_DEVICE marks functions that nvcc compiles for the host and for the device: rules and
// index arithmetic that both backends share. Other compilers see nothing. With it BitCast, for such
// functions.
#pragma once

#include <cstring>

#ifdef __CUDACC__
#define FOX_HOST_DEVICE __host__ __device__
#else
#define FOX_HOST_DEVICE
#endif

namespace fox {

// std::bit_cast, which nvcc does not compile for the device.
template <typename To, typename From>
FOX_HOST_DEVICE inline To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace fox
