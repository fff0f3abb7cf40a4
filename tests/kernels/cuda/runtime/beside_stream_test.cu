// BesideStream: the work that Run launches begins behind the mark, or without a mark behind all
// work of the first stream; the first stream's work behind Join begins when the launched work has
// ended.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime/beside_stream.h"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda {
namespace {

using testing::DeviceArray;

// What kernels of two streams see of each other.
enum Flag : int { kFirstEnded, kFirstSawSecond, kSecondEnded, kSecondSawFirst, kFlags };

__device__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Ends when the second stream's kernel has, or after `most` nanoseconds.
__global__ void First(volatile int* flags, uint64_t most) {
  const uint64_t begin = Nanoseconds();
  while (flags[kSecondEnded] == 0 && Nanoseconds() - begin < most) {
  }
  flags[kFirstSawSecond] = flags[kSecondEnded];
  flags[kFirstEnded] = 1;
}

__global__ void Second(volatile int* flags) {
  flags[kSecondSawFirst] = flags[kFirstEnded];
  flags[kSecondEnded] = 1;
}

// Nanoseconds that First waits at most: kLong where Second should run beside First and so end it,
// kShort where Second should wait for First, so that a Second that did not wait would be seen.
constexpr uint64_t kLong = 5'000'000'000, kShort = 20'000'000;

class BesideStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(error_.ok()) << error_.text();
    // The attributes make CUDA load both kernels now: otherwise Second would be loaded at its first
    // launch, for which CUDA may wait until First, which waits for Second, has ended.
    cudaFuncAttributes attributes{};
    ASSERT_EQ(cudaFuncGetAttributes(&attributes, KernelAddress(First)), cudaSuccess);
    ASSERT_EQ(cudaFuncGetAttributes(&attributes, KernelAddress(Second)), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&on_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(on_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other_), cudaSuccess);
  }

  void LaunchFirst(uint64_t most) {
    First<<<1, 1, 0, on_>>>(flags_.data(), most);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  }
  // Launches the second kernel beside, then waits for all.
  void RunSecond() {
    const auto launch = [&](cudaStream_t stream) {
      Second<<<1, 1, 0, stream>>>(flags_.data());
      return cudaGetLastError();
    };
    ASSERT_EQ(beside_.Run(on_, launch), cudaSuccess);
    EXPECT_FALSE(beside_.marked());
    ASSERT_EQ(beside_.Join(on_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(on_), cudaSuccess);
    EXPECT_EQ(flags_.ToHost()[kSecondEnded], 1) << "Join does not wait";
  }

  DeviceError error_;
  BesideStream beside_{error_};
  cudaStream_t on_ = nullptr, other_ = nullptr;
  DeviceArray<int> flags_{std::vector<int>(kFlags)};
};

TEST_F(BesideStreamTest, WorkBehindAMarkDoesNotWaitForWhatComesBetween) {
  ASSERT_EQ(beside_.Mark(on_), cudaSuccess);
  LaunchFirst(kLong);
  RunSecond();
  EXPECT_EQ(flags_.ToHost()[kFirstSawSecond], 1);
}

TEST_F(BesideStreamTest, WorkWithoutAMarkWaitsForAllInFront) {
  LaunchFirst(kShort);
  RunSecond();
  EXPECT_EQ(flags_.ToHost()[kSecondSawFirst], 1);
}

TEST_F(BesideStreamTest, AMarkThatIsForgottenCountsNoMore) {
  ASSERT_EQ(beside_.Mark(on_), cudaSuccess);
  LaunchFirst(kShort);
  beside_.Forget();
  RunSecond();
  EXPECT_EQ(flags_.ToHost()[kSecondSawFirst], 1);
}

TEST_F(BesideStreamTest, AMarkIsOfItsStream) {
  ASSERT_EQ(beside_.Mark(other_), cudaSuccess);
  LaunchFirst(kShort);
  RunSecond();
  EXPECT_EQ(flags_.ToHost()[kSecondSawFirst], 1);
}

}  // namespace
}  // namespace fox::cuda
