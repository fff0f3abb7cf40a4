// MemoryBudget: weights and activations have fixed sizes; the pool of pages takes the rest.
#include "engine/run/memory_budget.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr int64_t kMaxDefaultLen = 131072;
constexpr int32_t kMinSeqs = 16;
constexpr int64_t kMinTokensPerSlot = 512, kMinStepTokens = 512;

double Mib(double bytes) { return bytes / (1 << 20); }

int64_t UnprunedTokens(const PagedKvShape& shape) {
  return shape.num_pages / shape.lists_per_slot() * kPageTokens;
}

// True if the pool is large enough for planned.max_num_seqs sequences.
bool PoolSuits(const ModelConfig& config, const RunnerOptions& planned, bool on_gpu) {
  const PagedKvShape shape = CacheShape(config, planned);
  const size_t tables = TableBytes(shape) + (on_gpu ? PenaltyStateBytes(config, planned) : 0);
  return UnprunedTokens(shape) >= kMinTokensPerSlot * planned.max_num_seqs &&
         8 * tables <= static_cast<size_t>(shape.num_pages) * shape.page_bytes();
}

// Bytes that a step needs beside weights and cache. While the length of sequences is unknown, the
// longest default counts.
int64_t StepBytes(const ModelConfig& config, DType residual_dtype, const Ops& ops,
                  const RunnerOptions& options) {
  Workload load = WorkloadOf(config, options);
  if (options.max_model_len == 0) load.shape.max_pages = PagesFor(kMaxDefaultLen);
  return static_cast<int64_t>(Activations::Bytes(config, residual_dtype, ops, load.max_rows,
                                                 std::max(options.max_logit_rows, load.max_seqs))) +
         ops.WorkspaceBytes(load);
}

}  // namespace

size_t TableBytes(const PagedKvShape& shape) {
  const auto lists =
      static_cast<size_t>(shape.max_slots) * static_cast<size_t>(shape.lists_per_slot());
  const auto heads = static_cast<size_t>(shape.max_slots) * static_cast<size_t>(shape.layers) *
                     static_cast<size_t>(shape.q_heads);
  const auto history = static_cast<size_t>(shape.history);
  return lists * (static_cast<size_t>(shape.max_pages) * sizeof(int32_t) + 16) +
         heads * (3 + history + static_cast<size_t>(shape.head_dim)) * sizeof(double) +
         2 * (1 + history) * lists * static_cast<size_t>(shape.head_dim) *
             SizeOf(shape.residual_dtype());
}

absl::Status PlanMemory(const ModelConfig& config, const MemoryRequest& request,
                        RunnerOptions& options) {
  const PagedKvShape shape = CacheShape(config, options);
  const int64_t bytes =
      request.kv_cache_bytes > 0 ? request.kv_cache_bytes : request.available_bytes;
  const int64_t lists = shape.lists_per_slot();
  FOX_CHECK(lists > 0 && shape.page_bytes() > 0);
  int64_t pages = std::min<int64_t>(bytes / static_cast<int64_t>(shape.page_bytes()),
                                    std::numeric_limits<int32_t>::max());
  if (request.kv_cache_tokens > 0) {
    const int64_t unpruned = PagesFor(request.kv_cache_tokens) * lists;
    // With eviction fewer pages may do.
    if (pages < (options.acp == AcpMode::kOff ? unpruned : lists)) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "the KV cache of %d tokens takes %.1f MiB, but %.1f MiB are left for it",
          request.kv_cache_tokens,
          Mib(static_cast<double>(unpruned) * static_cast<double>(shape.page_bytes())),
          Mib(static_cast<double>(bytes))));
    }
    pages = std::min(pages, unpruned);
  }
  if (pages < lists) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--kv-cache-mb: ", bytes >> 20, " MiB hold ", pages, " pages, but one block of ",
        kPageTokens, " tokens takes ", lists, " (layers x kv heads)"));
  }
  const int64_t unpruned = pages / lists * kPageTokens;
  options.num_pages = static_cast<int>(pages);
  options.max_model_len =
      request.max_model_len > 0 ? request.max_model_len : std::min(unpruned, kMaxDefaultLen);
  if (config.use_rope && request.max_model_len == 0 && config.max_position_embeddings) {
    options.max_model_len = std::min(options.max_model_len, *config.max_position_embeddings);
  }
  if (config.sliding_window) {
    if (request.max_model_len > *config.sliding_window) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--max-model-len: ", request.max_model_len, " tokens, but this model is served up to ",
          *config.sliding_window, ", its sliding_window"));
    }
    options.max_model_len = std::min(options.max_model_len, *config.sliding_window);
  }
  return absl::OkStatus();
}

int64_t WeightBytes(const ModelConfig& config, DType dtype, DType embeddings_dtype,
                    Quantization quantization) {
  const int64_t projection = ColumnsOf(config).total, inner = config.intermediate_size;
  const int64_t layers =
      config.num_layers * config.hidden_size * (projection + config.q_size() + 3 * inner);
  const int64_t largest = config.hidden_size * std::max(projection, 2 * inner);
  const int64_t table = config.vocab_size * config.hidden_size;
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  if (IsBlocks(quantization)) {
    constexpr int64_t kQ8Bytes = 34, kQ4Bytes = 18;  // a block
    return (layers * (quantization == Quantization::kQ8 ? kQ8Bytes : kQ4Bytes) +
            2 * table * kQ8Bytes) /
           kBlockColumns;
  }
  const bool fp8 = quantization == Quantization::kFp8;
  return (fp8 ? layers + largest * size : layers * size) + table * size +
         table * static_cast<int64_t>(SizeOf(embeddings_dtype));
}

absl::Status PlanMemoryWithin(const MemoryLimit& limit, const MemoryBeside& beside,
                              const ModelConfig& config, MemoryRequest request,
                              RunnerOptions& options) {
  const int64_t activations = StepBytes(config, beside.residual_dtype, beside.ops, options);
  const int64_t rest = beside.weights + beside.staging + activations;
  const auto refuse = [&](int64_t pages, int64_t tables) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s%.1f MiB of weights, %.1f MiB of KV pages and %.1f MiB of tables and activations do "
        "not fit into the %.1f MiB that %s leaves",
        request.kv_cache_bytes > 0 ? "--kv-cache-mb: " : "",
        Mib(static_cast<double>(beside.weights)), Mib(static_cast<double>(pages)),
        Mib(static_cast<double>(tables + activations + beside.staging)),
        Mib(static_cast<double>(limit.bytes)), limit.source));
  };
  if (rest >= limit.bytes) return refuse(request.kv_cache_bytes, 0);
  request.available_bytes = std::min(request.available_bytes, limit.bytes - rest);
  for (bool again = false;; again = true) {
    RunnerOptions planned = options;
    if (absl::Status status = PlanMemory(config, request, planned); !status.ok()) return status;
    const PagedKvShape shape = CacheShape(config, planned);
    const int64_t pages = shape.num_pages * static_cast<int64_t>(shape.page_bytes());
    const auto tables = static_cast<int64_t>(TableBytes(shape));
    const int64_t excess = rest + pages + tables - limit.bytes;
    if (excess <= 0) {
      options = planned;
      return absl::OkStatus();
    }
    // The tables of a chosen pool are taken out of it; they do not grow as it shrinks.
    if (again || request.kv_cache_bytes > 0 || excess >= request.available_bytes) {
      return refuse(pages, tables);
    }
    request.available_bytes = std::min(request.available_bytes, pages) - excess;
  }
}

absl::StatusOr<RunnerOptions> PlanStepSizes(
    const ModelConfig& config, const RunnerOptions& options, int32_t max_seqs, bool on_gpu,
    const std::function<absl::Status(RunnerOptions&)>& plan) {
  RunnerOptions sizes = options;
  if (options.max_num_seqs == 0) sizes.max_num_seqs = std::max(max_seqs, kMinSeqs);
  for (;;) {
    RunnerOptions planned = WithStepSizes(sizes, on_gpu);
    const absl::Status status = plan(planned);
    if (options.max_num_seqs == 0 && sizes.max_num_seqs > kMinSeqs &&
        (!status.ok() || !PoolSuits(config, planned, on_gpu))) {
      sizes.max_num_seqs = std::max(sizes.max_num_seqs / 2, kMinSeqs);
      continue;
    }
    if (!status.ok()) return status;
    const int64_t max_tokens =
        std::max(kMinStepTokens,
                 UnprunedTokens(CacheShape(config, planned)) / 4 / kPageTokens * kPageTokens);
    if (sizes.max_num_batched_tokens > 0 || planned.max_num_batched_tokens <= max_tokens)
      return planned;
    sizes.max_num_batched_tokens = max_tokens;  // smaller activations leave more for the pool
  }
}

int64_t AvailableDeviceBytes(Ops& ops, double utilization, const FoxWeights& weights,
                             const RunnerOptions& options) {
  constexpr double kReserve = 1 << 30;  // for cuBLAS, graphs, small tables
  const DeviceQueue& queue = *ops.queue();
  const auto total = static_cast<double>(queue.total_bytes());
  const double used = total - static_cast<double>(queue.free_bytes());
  const auto step =
      static_cast<double>(StepBytes(weights.config, weights.residual_dtype, ops, options));
  // While the length of sequences is unknown: tables for the longest default.
  PagedKvShape shape = CacheShape(weights.config, options);
  shape.max_pages = PagesFor(std::max(options.max_model_len, kMaxDefaultLen));
  const auto tables = static_cast<double>(TableBytes(shape));
  const auto states = static_cast<double>(PenaltyStateBytes(weights.config, options));
  return std::max<int64_t>(
      0, static_cast<int64_t>(utilization * total - used - step - tables - states - kReserve));
}

std::string DescribeMemory(const ModelRunner& runner) {
  const FoxWeights& weights = runner.weights();
  const RunnerOptions& options = runner.options();
  const PagedKvShape shape = CacheShape(weights.config, options);
  const double page = static_cast<double>(shape.page_bytes());
  const auto activations =
      static_cast<double>(StepBytes(weights.config, weights.residual_dtype, runner.ops(), options));
  const size_t states =
      runner.limits().samples_on_device ? PenaltyStateBytes(weights.config, options) : 0;
  return absl::StrFormat(
      "memory plan:\n"
      "  linear weights   %8.1f MiB\n"
      "  embeddings       %8.1f MiB\n"
      "  KV pages         %8.1f MiB  (%d pages of %.1f KiB: %d tokens x 1 head; pool holds %d "
      "tokens unpruned)\n"
      "  KV tables        %8.1f MiB  (%d sequences of at most %d tokens; %d of them run at once)\n"
      "  penalty state    %8.1f MiB  (biases and counts, for sampling on the device)\n"
      "  activations      %8.1f MiB  (%d tokens and %d logit rows a step)\n%s%s",
      Mib(static_cast<double>(weights.linear_bytes())),
      Mib(static_cast<double>(weights.embedding_bytes())), Mib(page * shape.num_pages),
      shape.num_pages, page / 1024, kPageTokens, UnprunedTokens(shape),
      Mib(static_cast<double>(TableBytes(shape))), options.num_slots(), options.max_model_len,
      options.max_num_seqs, Mib(static_cast<double>(states)), Mib(activations),
      options.max_num_batched_tokens, options.max_logit_rows,
      options.staging_buffers == 0
          ? ""
          : absl::StrFormat(
                "  staging buffers  %8.1f MiB  (snapshots on their way to disk and back)\n",
                Mib(static_cast<double>(options.staging_buffers) *
                    static_cast<double>(options.staging_bytes))),
      weights.config.forget_gate == ForgetGate::kNone
          ? "  pruning          none: the model has no forget gates\n"
          : "");
}

}  // namespace fox
