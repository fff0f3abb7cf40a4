// Launch: a kernel starts while the previous one still runs, where that is allowed. The first
// kernel lets the next one start and then waits, for a while, until it has.
#include <gtest/gtest.h>

#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda::testing {
namespace {

constexpr long long kPatience = 100'000'000;  // clock cycles, some 50 ms

// Waits for the next kernel's start, for kPatience at most; *met: 1 if it started meanwhile.
__global__ void MeetNext(volatile int* started, int* met) {
  TriggerDependents();
  WaitOnDependencies();
  const long long begin = clock64();
  while (*started == 0 && clock64() - begin < kPatience) {
  }
  *met = *started;
}

// Writes before its wait, against the contract of launch.h.
__global__ void Start(volatile int* started) {
  *started = 1;
  WaitOnDependencies();
}

// True if the second kernel started while the first one, which waits for that, was running.
bool OverlapsOn(cudaStream_t stream) {
  DeviceArray<int> started(std::vector<int>{0}), met(std::vector<int>{-1});
  EXPECT_EQ(Launch(MeetNext, 1, 1, 0, stream, started.data(), met.data()), cudaSuccess);
  EXPECT_EQ(Launch(Start, 1, 1, 0, stream, started.data()), cudaSuccess);
  return met.ToHost()[0] == 1;
}

TEST(LaunchTest, OverlapsWhereTheCodeWaitsAndTheStreamAllows) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const bool waits = HasSm90Code(KernelAddress(Start));
  EXPECT_EQ(Overlaps(KernelAddress(Start), stream), waits);
  EXPECT_EQ(OverlapsOn(stream), waits);
  AllowOverlap(stream, false);
  EXPECT_FALSE(Overlaps(KernelAddress(Start), stream));
  EXPECT_FALSE(OverlapsOn(stream));
  AllowOverlap(stream, true);
  EXPECT_EQ(OverlapsOn(stream), waits);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Launch n of a chain in which each block loads its sector and stores n to the other half of a
// sector of a block on another SM. `stale` counts loads that miss the store of launch n - 1.
constexpr int kSectorWords = 8;
__global__ void ExchangeHalves(int* sectors, int n, bool loads_early, int* stale) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int* half = sectors + block * kSectorWords + kSectorWords / 2;
  int early = 0, late;
  if (loads_early) asm volatile("ld.global.ca.s32 %0, [%1];" : "=r"(early) : "l"(half));
  TriggerDependents();
  WaitOnDependencies();
  asm volatile("ld.global.ca.s32 %0, [%1];" : "=r"(late) : "l"(half) : "memory");
  if (late < n - 1 || early > late) atomicAdd(stale, 1);
  const int other = (block + blocks / 2 + 1) % blocks;
  sectors[other * kSectorWords + kSectorWords / 2] = n;
}

// The wait makes the earlier kernels' stores visible to plain loads behind it, even if the L1 held
// older lines: PTX promises it for griddepcontrol.wait. Decode relies on it for the residual and
// the norms.
TEST(LaunchTest, PlainLoadsBehindTheWaitSeeEarlierStores) {
  int multiprocessors = 0;
  ASSERT_EQ(CountMultiprocessors(&multiprocessors), cudaSuccess);
  for (const bool loads_early : {false, true}) {
    SCOPED_TRACE(loads_early ? "loaded before the wait, too" : "loaded behind the wait");
    DeviceArray<int> sectors(std::vector<int>(multiprocessors * 2 * kSectorWords, 0));
    DeviceArray<int> stale(std::vector<int>{0});
    for (int n = 1; n <= 1'000'000; ++n) {
      ASSERT_EQ(Launch(ExchangeHalves, static_cast<unsigned>(multiprocessors * 2), 32, 0, nullptr,
                       sectors.data(), n, loads_early, stale.data()),
                cudaSuccess)
          << n;
    }
    EXPECT_EQ(stale.ToHost()[0], 0);
  }
}

// Four kernels in a chain as a mixed step has them: the first lets the next start behind its wait
// and works on, the others let the next start at once. Each later kernel counts the values that the
// first one writes last and that it does not see.
constexpr long long kWork = 60'000;  // clock cycles, some 30 us

__global__ void FirstOfChain(int* values, int n) {
  WaitOnDependencies();
  TriggerDependents();
  const long long begin = clock64();
  while (clock64() - begin < kWork) {
  }
  values[blockIdx.x] = n;
}

__global__ void LaterOfChain(const int* values, int count, int n, int* missed) {
  TriggerDependents();
  WaitOnDependencies();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    if (LoadCoherent(values + i) < n) atomicAdd(missed, 1);
  }
}

TEST(LaunchTest, TheEndOfAKernelIsTheEndOfAllBefore) {
  constexpr int kKib = 1024;
  constexpr int kChains = 2000;
  // Blocks and shared memory of each kernel: of a mixed step, of small ones, of whole waves.
  struct Shape {
    unsigned blocks[4];
    size_t bytes[4];
  };
  const Shape shapes[] = {{{128, 5, 64, 128}, {100 * kKib, 0, 200 * kKib, 75 * kKib}},
                          {{1, 1, 1, 1}, {}},
                          {{264, 5, 132, 264}, {}}};
  for (const void* kernel : {KernelAddress(FirstOfChain), KernelAddress(LaterOfChain)}) {
    if (AllowDynamicSmem(kernel, 200 * kKib) != cudaSuccess) {
      cudaGetLastError();
      GTEST_SKIP() << "a block has less shared memory here";
    }
  }
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.blocks[0]);
    const int count = static_cast<int>(shape.blocks[0]);
    DeviceArray<int> values(std::vector<int>(shape.blocks[0], 0)), missed(std::vector<int>(3, 0));
    for (int n = 1; n <= kChains; ++n) {
      ASSERT_EQ(Launch(FirstOfChain, shape.blocks[0], 256, SmemConfig(shape.bytes[0], true),
                       nullptr, values.data(), n),
                cudaSuccess)
          << n;
      for (int k = 1; k < 4; ++k) {
        ASSERT_EQ(Launch(LaterOfChain, shape.blocks[k], 256, SmemConfig(shape.bytes[k], true),
                         nullptr, values.data(), count, n, missed.data() + k - 1),
                  cudaSuccess)
            << n << " " << k;
      }
    }
    EXPECT_EQ(missed.ToHost(), std::vector<int>(3, 0));
  }
}

TEST(KernelAttributesTest, AreThoseOfTheCodeThatRuns) {
  int device = 0, major = 0, minor = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), cudaSuccess);
  const int compiled = CompiledArchitecture(KernelAddress(Start));
  EXPECT_GE(compiled, 80);
  EXPECT_LE(compiled, 10 * major + minor);
  int blocks = 0, again = 0;
  EXPECT_EQ(ResidentBlocks(KernelAddress(Start), 1024, 0, &blocks), cudaSuccess);
  EXPECT_EQ(ResidentBlocks(KernelAddress(Start), 1024, 0, &again), cudaSuccess);
  EXPECT_GE(blocks, 1);
  EXPECT_EQ(blocks, again);
  EXPECT_EQ(CompiledArchitecture(nullptr), 0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace fox::cuda::testing
