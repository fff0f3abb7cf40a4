// Launching kernels so that the next one may start while this one ends (programmatic dependent
// launch).
//
// Contract of every kernel of this backend: it calls WaitOnDependencies() before it touches
// anything that an earlier kernel of the step may write or still read, its own outputs included;
// weights and constants may be read before, and values that it forgets. It may call
// TriggerDependents() at any time, from all its threads; best at the start, for the next kernel
// waits for this one's end all the same. Some thread of every launch waits, so the end of a kernel
// implies the end of all kernels before it on its stream (in steps with prompts decode attention
// has one of its own, beside_stream.h). Everything but constants that a kernel reads before its
// wait it reads past the first-level cache (LoadCoherent), because no launch of the chain has
// cleared that: lines of an earlier step may lie there, and memory such as the batch is written
// anew at the same addresses.
//
// BatchView's arrays and SampleParams' rows are copied before the step's first kernel, and so are
// constants; sampled_tokens are the step before's. A kernel *triggers after its wait* if it calls
// TriggerDependents() only after its WaitOnDependencies(): when the kernel behind it starts, all
// kernels before it have ended. Products of few rows that begin with a norm do (linear.h), the
// projection in front of Append among them; AppendDecode does where the projection did not. So
// DecodeAttention may read ahead everything that these two do not write. And AppendDecode may read
// ahead its layer's state: the kernels from the last one on that triggered after its wait do not
// write that, be they the projection alone or all of the layer before, its AppendDecode first; but
// in the first layer behind more than four rows BeginStepKernel is among them, which writes lists.
// AccumulateBlocks always triggers after its wait, so ProjectQueries behind it works before its
// wait. BeginStepKernel triggers after its wait, too, so Embed's LookUpKernel, two launches behind
// it, works before its wait.
//
// PrefillGemm, and so PrefillFp8Gemm, triggers after its wait for another reason: in a step of at
// most four decode rows beside a short prompt, the next product (down) would start while gate/up of
// the decode rows still runs, three launches before it. On an H200 some blocks of that product then
// computed with wrong rows of W, in 35 to 77 of 100 chains of linear_test.cc. Why is not known: it
// reads only W before its wait, and neither loads past the first-level cache nor a pause behind the
// wait changed the bits; four simple kernels in such a chain see all that they should
// (launch_test.cu).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {

// The share of an SM's memory, in percent, that a kernel asks for as shared memory; L1 gets the
// rest. An SM has one share at a time and has to be empty to change it.
enum class Carveout : int {
  kAny = -1,                             // CUDA chooses
  kAttention = 75,                       // 196 KiB of shared memory and 60 KiB of L1
  kMax = cudaSharedmemCarveoutMaxShared  // 228 and 28
};
// Bytes of shared memory that an SM has with kAttention, and that CUDA takes for itself of each
// block's.
inline constexpr size_t kAttentionSmem = 196 * 1024, kReservedSmem = 1024;

// Kernels that are to overlap on an SM must all ask for the largest share, even if they use less:
// from BeginStep to Sample all do, in steps of up to kOverlapRows rows, all of which decode, but
// for the kernels of DecodeCarveout.
inline constexpr int64_t kOverlapRows = 64;
constexpr Carveout OverlapCarveout(int64_t rows) {
  return rows <= kOverlapRows ? Carveout::kMax : Carveout::kAny;
}

// Up to kFewRows decode rows SmallBatchGemm multiplies (linear.cu), above them ClusterGemm.
inline constexpr int64_t kFewRows = 4;

// The share for which AppendDecode and decode attention ask: with more L1 attention saves more than
// it loses because these kernels overlap the projection less, so steps of more than kFewRows rows
// take 1 to 4% less (kernels/docs/decode.md). In steps with prompts other kernels run beside them.
inline Carveout DecodeCarveout(const BatchView& batch) {
  if (batch.all_decodes() && batch.num_rows > kFewRows) return Carveout::kAttention;
  return OverlapCarveout(batch.num_rows);
}

// Dynamic shared memory of a block, and the kernel's share.
struct SmemConfig {
  SmemConfig(size_t size, bool prefer_max = false)  // NOLINT: a size is enough for most
      : SmemConfig(size, prefer_max ? Carveout::kMax : Carveout::kAny) {}
  SmemConfig(size_t size, Carveout share) : bytes(size), carveout(share) {}
  size_t bytes;
  Carveout carveout;
};

// True if a kernel may overlap the previous one on `stream`: its code must contain the waits, which
// code compiled for older architectures lacks even on devices that have them, and the stream must
// allow it. Any thread.
bool Overlaps(const void* kernel, cudaStream_t stream);
// At first every stream allows overlap. Allow it again before the stream is destroyed.
void AllowOverlap(cudaStream_t stream, bool allow);

// Launches kernel<<<grid, block, shared, stream>>>(arguments...), overlapping its start with the
// end of the previous kernel where Overlaps().
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, SmemConfig shared,
                   cudaStream_t stream, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
  const bool overlaps = Overlaps(KernelAddress(kernel), stream);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared.bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (overlaps) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
#if CUDART_VERSION >= 12060  // the attribute is younger than the oldest toolkit we build with
  if (overlaps && shared.carveout != Carveout::kAny) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attribute.val.sharedMemCarveout = static_cast<unsigned>(shared.carveout);
  }
#endif
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace fox::cuda
