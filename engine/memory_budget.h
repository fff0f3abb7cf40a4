// MemoryBudget: how the memory is divided at start, decided once and printed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model_runner.h"

namespace fox {

// MemAvailable of the machine; 4 GiB where it cannot be read.
int64_t AvailableBytes();

struct MemoryRequest {
  int64_t kv_cache_bytes = 0;   // 0: available_bytes
  int64_t available_bytes = 0;  // for pages
  int64_t max_model_len = 0;    // 0: what the pool holds unpruned, at most 131072 tokens
  int64_t kv_cache_tokens = 0;  // the pool holds no more than so many tokens unpruned; 0: no limit
};

// Fills num_pages and max_model_len of `options`. InvalidArgument names the flag to change;
// ResourceExhausted: `kv_cache_tokens` tokens cannot fit, whatever is evicted.
absl::Status PlanMemory(const ModelConfig& config, const MemoryRequest& request,
                        RunnerOptions& options);

// What a GPU has for pages: `utilization` of its memory, less what is in use (weights), the
// activations, tables and penalty state of `options`, and room for the backend's own work space.
int64_t AvailableDeviceBytes(DeviceQueue& queue, double utilization, const FoxWeights& weights,
                             const RunnerOptions& options);

// The plan as human-readable text, one item per line.
std::string DescribeMemory(const ModelRunner& runner);

}  // namespace fox
