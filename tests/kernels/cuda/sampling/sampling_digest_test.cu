// The arithmetic of sampling on the device has the bits that it has on the host.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/cuda/runtime/launch.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/sampling_digest.h"

namespace fox::cuda {
namespace {

using testing::DeviceArray;

__global__ void DigestKernel(uint64_t* bits) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < SamplingDigest::kCount) bits[i] = SamplingDigest::Of(i);
}

TEST(SamplingDigestTest, TheDeviceHasTheHostsBits) {
  DeviceArray<uint64_t> device(SamplingDigest::kCount);
  constexpr int kThreads = 256;
  ASSERT_EQ(
      Launch(DigestKernel, SamplingDigest::kCount / kThreads, kThreads, 0, nullptr, device.data()),
      cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  SamplingDigest digest;
  const auto bits = device.ToHost();
  for (uint32_t i = 0; i < SamplingDigest::kCount; ++i) {
    ASSERT_EQ(bits[i], SamplingDigest::Of(i)) << i;
    digest.Add(bits[i]);
  }
  EXPECT_EQ(digest.value(), SamplingDigest::kExpected);
}

}  // namespace
}  // namespace fox::cuda
