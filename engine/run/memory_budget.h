// MemoryBudget: how the memory is divided at start, decided once and printed.
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
  int64_t max_model_len = 0;    // 0: what the pool holds unpruned, at most 131072 tokens
  int64_t kv_cache_tokens = 0;  // the pool holds no more than so many tokens unpruned; 0: no limit
};

// Bytes of a cache beside its pages: tables and running states.
size_t TableBytes(const PagedKvShape& shape);

// Fills num_pages and max_model_len of `options`. InvalidArgument names the flag to change;
// ResourceExhausted: `kv_cache_tokens` tokens cannot fit, whatever is evicted.
absl::Status PlanMemory(const ModelConfig& config, const MemoryRequest& request,
                        RunnerOptions& options);

// What will be there beside the pages.
struct MemoryBeside {
  int64_t weights = 0;  // WeightBytes
  int64_t swap_space = 0;
  DType residual_dtype = DType::kF32;
  const Ops& ops;  // whose activations
};

// Bytes of the packed weights in `dtype` and of the embeddings in theirs; fp8: layers in 8 bits,
// and room for the largest weight in `dtype`.
int64_t WeightBytes(const ModelConfig& config, DType dtype, DType embeddings_dtype, bool fp8);

// PlanMemory, of a pool that fits beside the rest into what there is. ResourceExhausted has all
// the numbers; nothing has been allocated then.
absl::Status PlanMemoryWithin(const MemoryLimit& limit, const MemoryBeside& beside,
                              const ModelConfig& config, MemoryRequest request,
                              RunnerOptions& options);

// Bytes of swap space for the planned `options`, of what there is in the host's memory: `asked`, or
// if that is negative chosen. On a GPU an eighth of the pool, but 1 GiB (pinning it takes the start
// 0.3 s) and a sixteenth of `host`; on a CPU none, where a larger pool takes no more memory and no
// copies. ResourceExhausted: more than there is, or there is none. InvalidArgument: not enough for
// one page of each list and the state of a sequence.
absl::StatusOr<int64_t> PlanSwapSpace(const MemoryLimit& host, const ModelConfig& config,
                                      const RunnerOptions& options, bool on_gpu, int64_t asked);

// `options` with sizes of a step (WithStepSizes) and planned by `plan`, which fills in the pool
// that is left beside them. Slots that are to be chosen (max_num_seqs 0): the most, from 16 to
// `max_seqs` by factors of two, that have 512 tokens of the pool each, unpruned, and whose tables
// are an eighth of it at most. Tokens of a step that are to be chosen: at most a quarter of the
// pool's, but 512. Returns what `plan` does.
absl::StatusOr<RunnerOptions> PlanStepSizes(
    const ModelConfig& config, const RunnerOptions& options, int32_t max_seqs, bool on_gpu,
    const std::function<absl::Status(RunnerOptions&)>& plan);

// What a GPU has for pages: `utilization` of its memory, less what is in use (weights), the
// activations, workspace, tables and penalty state of `options`, and room for all else. REQUIRES:
// ops.queue() is not null.
int64_t AvailableDeviceBytes(Ops& ops, double utilization, const FoxWeights& weights,
                             const RunnerOptions& options);

// The plan as human-readable text, one item per line.
std::string DescribeMemory(const ModelRunner& runner);

}  // namespace fox
