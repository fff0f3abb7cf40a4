// Mbarrier: what a warp has written is seen by another that waits, however it is announced. The
// second way is a limit of racecheck, shown by little (tests/bench/gpu_test.py): an arrival
// releases what a __syncwarp before it orders, and the tool reports a race.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda::testing {
namespace {

constexpr int kLanes = 32, kStages = 2;
constexpr int kRounds = 20;  // ten times around the ring

enum class Announced { kByEachLane, kByOneLane };

// Warp 0 passes values to warp 1, each lane those of the next lane.
template <Announced kAnnounced>
__global__ void HandOver(int* out) {
  __shared__ int values[kStages][kLanes];
  __shared__ Mbarrier full[kStages], empty[kStages];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      full[i].Init(kAnnounced == Announced::kByEachLane ? kLanes : 1);
      empty[i].Init(kLanes);
    }
    PublishBarriers();
  }
  __syncthreads();
  for (int i = 0; i < kRounds; ++i) {
    const int stage = i % kStages;
    const uint32_t phase = static_cast<uint32_t>(i / kStages % 2);
    if (threadIdx.x < kLanes) {
      while (!empty[stage].HasEnded(phase ^ 1)) {
      }
      values[stage][lane] = kLanes * i + lane;
      if constexpr (kAnnounced == Announced::kByOneLane) __syncwarp();
      if (kAnnounced == Announced::kByEachLane || lane == 0) full[stage].Arrive();
    } else {
      while (!full[stage].HasEnded(phase)) {
      }
      out[kLanes * i + lane] = values[stage][lane ^ 1];
      empty[stage].Arrive();
    }
  }
}

template <Announced kAnnounced>
void ExpectHandedOver() {
  DeviceArray<int> out(std::vector<int>(kLanes * kRounds, -1));
  ASSERT_EQ(Launch(HandOver<kAnnounced>, 1, 2 * kLanes, 0, nullptr, out.data()), cudaSuccess);
  const std::vector<int> seen = out.ToHost();
  for (int i = 0; i < kLanes * kRounds; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i ^ 1);
}

TEST(MbarrierTest, EachLaneArrives) { ExpectHandedOver<Announced::kByEachLane>(); }
TEST(MbarrierTest, OneLaneArrivesForItsWarp) { ExpectHandedOver<Announced::kByOneLane>(); }

}  // namespace
}  // namespace fox::cuda::testing
