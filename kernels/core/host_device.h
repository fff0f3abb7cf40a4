// FOX_HOST_DEVICE marks functions that nvcc compiles for the host and for the device: rules and
// index arithmetic that both backends share. Other compilers see nothing.
#pragma once

#ifdef __CUDACC__
#define FOX_HOST_DEVICE __host__ __device__
#else
#define FOX_HOST_DEVICE
#endif
