// The cluster's barrier: which of a block's writes the others see after it.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda::testing {
namespace {

constexpr int kBlocks = 8, kThreads = 512, kEach = 16, kRounds = 64;
constexpr int kSlice = kThreads * kEach;  // values of a block

enum class Memory { kShared, kGlobal };

// In each round every block rewrites its slice and reads that of the next block after the barrier:
// counts the values that are not of this round.
template <Memory kMemory>
__global__ void FOX_CLUSTER(kBlocks) __launch_bounds__(kThreads)
    ReadNextBlock(int* values, int* stale) {
  __shared__ int shared[kSlice];
  const int rank = static_cast<int>(blockIdx.x) % kBlocks, next = (rank + 1) % kBlocks;
  const int first = static_cast<int>(blockIdx.x) / kBlocks * kBlocks;  // the cluster's
  int wrong = 0;
  for (int round = 1; round <= kRounds; ++round) {
    int* mine = kMemory == Memory::kShared ? shared : values + (first + rank) * kSlice;
    for (int i = 0; i < kEach; ++i) mine[i * kThreads + static_cast<int>(threadIdx.x)] = round;
    if constexpr (kMemory == Memory::kGlobal) ReleaseAll();
    ArriveReleasingShared();
    WaitForCluster();
    for (int i = 0; i < kEach; ++i) {
      // Another thread's.
      const int at = i * kThreads + (static_cast<int>(threadIdx.x) + 33) % kThreads;
      const int seen = kMemory == Memory::kShared ? LoadFromBlock(shared + at, next)
                                                  : values[(first + next) * kSlice + at];
      wrong += seen == round ? 0 : 1;
    }
    ReleaseAll();  // a relaxed arrival does not wait for loads
    ArriveAtClusterRelaxed();
    WaitForCluster();
  }
  atomicAdd(stale, wrong);
}

class ClusterTest : public ::testing::TestWithParam<Memory> {};

TEST_P(ClusterTest, TheNextBlockSeesWhatWasReleased) {
  const auto kernel = GetParam() == Memory::kShared ? ReadNextBlock<Memory::kShared>
                                                    : ReadNextBlock<Memory::kGlobal>;
  if (!HasSm90Code(KernelAddress(kernel))) GTEST_SKIP() << "no clusters";
  constexpr int kClusters = 16;
  DeviceArray<int> values(std::vector<int>(size_t{kClusters} * kBlocks * kSlice, 0));
  DeviceArray<int> stale(std::vector<int>{0});
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(
        Launch(kernel, kClusters * kBlocks, kThreads, 0, nullptr, values.data(), stale.data()),
        cudaSuccess);
  }
  EXPECT_EQ(stale.ToHost()[0], 0);
}

INSTANTIATE_TEST_SUITE_P(Memories, ClusterTest, ::testing::Values(Memory::kShared, Memory::kGlobal),
                         [](const auto& memory) {
                           return memory.param == Memory::kShared ? "Shared" : "Global";
                         });

}  // namespace
}  // namespace fox::cuda::testing
