// BeginStep behind kernels of an earlier step without a full barrier between them, as in steps that
// are not graphs: the plan is that of the step's own batch.
#include <gtest/gtest.h>

#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/cuda/runtime/launch.h"
#include "tests/kernels/cuda/device_kv.h"

namespace fox::cuda::testing {
namespace {

constexpr int kSeqs = 16, kLayers = 24, kSteps = 200;
constexpr int64_t kFirstPosition = 1000;
constexpr long long kDelay = 200'000;  // clock cycles: the host enqueues the chain meanwhile

__global__ void Delay() {
  TriggerDependents();
  WaitOnDependencies();
  const long long begin = clock64();
  while (clock64() - begin < kDelay) {
  }
}

// Brings the batch into the first-level cache of every SM, as Evict does at the end of a step.
__global__ void ReadBatch(BatchView batch, int64_t* sums) {
  TriggerDependents();
  WaitOnDependencies();
  int64_t sum = 0;
  for (int i = 0; i < batch.num_seqs; ++i) {
    int64_t position;
    asm volatile("ld.global.ca.s64 %0, [%1];" : "=l"(position) : "l"(batch.position + i));
    sum += position;
  }
  sums[blockIdx.x] = sum;
}

// The next step's batch, at the same addresses.
__global__ void AdvanceBatch(int64_t* position) {
  TriggerDependents();
  WaitOnDependencies();
  ++position[threadIdx.x];
}

TEST(BeginStepTest, PlansTheStepThatWasWrittenLast) {
  int multiprocessors = 0;
  ASSERT_EQ(CountMultiprocessors(&multiprocessors), cudaSuccess);
  const PagedKvShape shape = NarrowShape(kLayers, 2, 1, kSeqs, 32, kSeqs * kLayers * 2 * 20);
  const DeviceKv kv(shape);
  std::vector<BatchEntry> entries;
  for (int slot = 0; slot < kSeqs; ++slot) {
    kv.Begin(slot, 0, kFirstPosition);
    entries.push_back({slot, kFirstPosition, 1, -10});
  }
  const DeviceBatch batch(entries);
  DeviceArray<int64_t> position(std::vector<int64_t>(kSeqs, kFirstPosition));
  BatchView view = batch.view;
  view.position = position.data();
  DeviceArray<int64_t> sums(static_cast<size_t>(2 * multiprocessors));
  const DeviceWork work(shape, kSeqs, kSeqs);
  const auto sms = static_cast<unsigned>(2 * multiprocessors);
  for (int step = 1; step <= kSteps; ++step) {
    SCOPED_TRACE(step);
    ASSERT_EQ(Launch(Delay, 1, 1, 0, nullptr), cudaSuccess);
    ASSERT_EQ(Launch(ReadBatch, sms, 1, 0, nullptr, view, sums.data()), cudaSuccess);
    ASSERT_EQ(Launch(AdvanceBatch, 1, kSeqs, 0, nullptr, position.data()), cudaSuccess);
    ASSERT_EQ(BeginStep(view, kv.view, work.view, nullptr), cudaSuccess);
    for (const SeqHead& seq_head : work.seq_heads.ToHost()) {
      ASSERT_EQ(seq_head.length, kFirstPosition + step + 1) << seq_head.index;
    }
  }
  EXPECT_EQ(kv.Fault(), PoolFault::kNone);
}

}  // namespace
}  // namespace fox::cuda::testing
