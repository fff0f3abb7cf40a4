// The few instructions that C++ does not have and linear layers need: asynchronous copies into
// shared memory, the barriers that announce them, and the tensor cores' m16n8k16 product. Portable
// to compute capability 8.0: there the bulk copy of Hopper becomes many 16-byte copies. For .cu
// files only.
#pragma once

#include <cstdint>

namespace fox::cuda {

inline constexpr int kWarp = 32;

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// A barrier among the first `kThreads` threads of the block; the others do not take part.
template <int kThreads>
__device__ __forceinline__ void SyncThreads() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// --- mbarriers. `parity` of the first phase is 0; a wait for parity 1 passes on a new barrier.

__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
}

// Makes initialised barriers known to the copy engine; a barrier of the block must follow.
__device__ __forceinline__ void PublishBarriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                   SharedAddress(barrier))
               : "memory");
}

__device__ __forceinline__ void WaitBarrier(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
#endif
  }
}

// --- Copies, global to shared.

// How many arrivals of one CopyTile complete a phase of the barrier that it signals.
__device__ __forceinline__ int CopyTileArrivals() {
#if __CUDA_ARCH__ >= 900
  return 1;
#else
  return kWarp;
#endif
}

// One whole warp copies `rows` (at most 32) rows of `bytes` each, which complete on `barrier`.
// Everything is 16-byte aligned. The data are read once, so they leave the L2 first.
__device__ __forceinline__ void CopyTile(const void* global, int64_t global_stride, void* shared,
                                         int shared_stride, int rows, int bytes,
                                         uint64_t* barrier) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const char* from = static_cast<const char*>(global);
  const uint32_t to = SharedAddress(shared);
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile(
        "{\n.reg .b64 state;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(
            SharedAddress(barrier)),
        "r"(rows * bytes)
        : "memory");
  }
  __syncwarp();
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  if (lane < rows) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to + static_cast<uint32_t>(lane * shared_stride)),
        "l"(__cvta_generic_to_global(from + lane * global_stride)), "r"(bytes),
        "r"(SharedAddress(barrier)), "l"(policy)
        : "memory");
  }
#else
  const int row_pieces = bytes / 16;
  for (int i = lane; i < rows * row_pieces; i += kWarp) {
    const int row = i / row_pieces, piece = i % row_pieces;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     to + static_cast<uint32_t>(row * shared_stride + piece * 16)),
                 "l"(__cvta_generic_to_global(from + row * global_stride + piece * 16))
                 : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
#endif
}

__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared),
               "l"(__cvta_generic_to_global(global))
               : "memory");
}

__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Returns when all but the latest `kPending` groups of the thread's copies have arrived.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// --- Tensor cores: C[16, 8] += A[16, 16] B[16, 8], A and B bf16, C float32. With g = lane / 4 and
// t = lane % 4, a thread holds C[g][2t], C[g][2t + 1], C[g + 8][2t], C[g + 8][2t + 1].

// Lane i gives the address of the row i % 8 of matrix i / 8, 16 bytes, aligned. Stays behind the
// barrier before it, as all that is volatile does.
__device__ __forceinline__ void LoadMatrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address));
}

__device__ __forceinline__ void LoadMatrices(uint32_t (&m)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(m[0]), "=r"(m[1])
               : "r"(address));
}

__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace fox::cuda
