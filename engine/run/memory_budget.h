// MemoryBudget: divides the memory between weights, pages, tables and activations, once at start.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/run/memory_limit.h"
#include "engine/run/model_runner.h"

namespace fox {

struct MemoryRequest {
  int64_t kv_cache_bytes = 0;   // 0: available_bytes
  int64_t available_bytes = 0;  // for pages
  int64_t max_model_len = 0;    // 0: as many tokens as the pool holds unpruned, at most 131072
  int64_t kv_cache_tokens = 0;  // limit on the tokens that the pool holds unpruned; 0: none
};

// Bytes of a cache beside its pages: tables and running states.
size_t TableBytes(const PagedKvShape& shape);

// Fills in num_pages and max_model_len of `options`. InvalidArgument names the flag to change;
// ResourceExhausted: `kv_cache_tokens` tokens cannot fit, even with eviction.
absl::Status PlanMemory(const ModelConfig& config, const MemoryRequest& request,
                        RunnerOptions& options);

// Memory that is used beside the pages.
struct MemoryBeside {
  int64_t weights = 0;  // WeightBytes
  int64_t staging = 0;  // buffers for images of snapshots
  DType residual_dtype = DType::kF32;
  const Ops& ops;  // determines the activations
};

// Bytes of the packed weights in `dtype` and of the embeddings in `embeddings_dtype`. kFp8: layers
// in 8 bits, and room for the largest weight in `dtype`. kQ8, kQ4: all in blocks, and as if the
// head were never tied.
int64_t WeightBytes(const ModelConfig& config, DType dtype, DType embeddings_dtype,
                    Quantization quantization);

// PlanMemory for a pool that fits into `limit` beside the rest. ResourceExhausted lists all sizes;
// nothing has been allocated then.
absl::Status PlanMemoryWithin(const MemoryLimit& limit, const MemoryBeside& beside,
                              const ModelConfig& config, MemoryRequest request,
                              RunnerOptions& options);

// `options` with the sizes of a step (WithStepSizes) and a pool, which `plan` fills in. If
// max_num_seqs is 0, chooses the largest number from 16 to `max_seqs`, by factors of two, with 512
// unpruned tokens of the pool for each sequence and with tables of at most an eighth of the pool.
// If max_num_batched_tokens is 0, chooses at most a quarter of the pool's tokens, but at least 512.
// Errors are those of `plan`.
absl::StatusOr<RunnerOptions> PlanStepSizes(
    const ModelConfig& config, const RunnerOptions& options, int32_t max_seqs, bool on_gpu,
    const std::function<absl::Status(RunnerOptions&)>& plan);

// Bytes that a GPU has for pages: `utilization` of its memory, less the memory in use (weights),
// the activations, workspace, tables and penalty state of `options`, and a reserve. REQUIRES:
// ops.queue() is not null.
int64_t AvailableDeviceBytes(Ops& ops, double utilization, const FoxWeights& weights,
                             const RunnerOptions& options);

// The plan as human-readable text, one item per line.
std::string DescribeMemory(const ModelRunner& runner);

}  // namespace fox
