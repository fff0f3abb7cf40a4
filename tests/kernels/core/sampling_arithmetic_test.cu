// The arithmetic of sampling on the device has the bits that it has on the host.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/cuda/runtime/launch.h"
#include "tests/kernels/sampling_digest.h"

namespace fox::cuda {
namespace {

__global__ void DigestKernel(uint64_t* bits) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < SamplingDigest::kCount) bits[i] = SamplingDigest::Of(i);
}

TEST(SamplingArithmeticTest, TheDeviceHasTheHostsBits) {
  uint64_t* bits = nullptr;
  ASSERT_EQ(cudaMallocManaged(&bits, SamplingDigest::kCount * sizeof(uint64_t)), cudaSuccess);
  constexpr int kThreads = 256;
  ASSERT_EQ(Launch(DigestKernel, SamplingDigest::kCount / kThreads, kThreads, 0, nullptr, bits),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  SamplingDigest digest;
  for (uint32_t i = 0; i < SamplingDigest::kCount; ++i) {
    ASSERT_EQ(bits[i], SamplingDigest::Of(i)) << i;
    digest.Add(bits[i]);
  }
  EXPECT_EQ(digest.value(), SamplingDigest::kExpected);
  EXPECT_EQ(cudaFree(bits), cudaSuccess);
}

}  // namespace
}  // namespace fox::cuda
