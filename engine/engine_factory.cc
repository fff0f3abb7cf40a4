// Engine factory: checkpoint, backend, memory plan, runner, engine.
#include "engine/engine_factory.h"

#include <algorithm>
#include <exception>
#include <new>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/request/sampling_limits.h"
#include "engine/run/memory_budget.h"
#include "kernels/cpu/cpu_ops.h"
#include "models/checkpoint/checkpoint.h"

#ifdef FOX_CUDA
#include "kernels/cuda/cuda_ops.h"
#endif

namespace fox {
namespace {

#ifdef FOX_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

// Default of max_step_seconds on a CPU. A GPU's steps are short enough.
constexpr double kCpuStepSeconds = 0.25;

// A snapshot is a conversation, or a text about which several questions are asked.
constexpr int32_t kSnapshotSlots = 128;

// On a GPU, because its steps are short. On a CPU the backend needs the cores.
constexpr unsigned kMatchingThreads = 8;

// More sequences at once gain little throughput and cost each of them time.
constexpr int32_t kMaxSeqs = 256, kSeqsPerThread = 8;

int32_t MaxSeqs(const EngineConfig& config, bool on_gpu) {
  if (config.runner.max_num_seqs > 0) return config.runner.max_num_seqs;
  if (on_gpu) return kMaxSeqs;
  const auto cores = static_cast<int32_t>(std::thread::hardware_concurrency());
  const int32_t threads = config.threads > 0 ? config.threads : cores;
  return std::clamp(kSeqsPerThread * threads, 16, kMaxSeqs);
}

absl::Status CheckConfig(const EngineConfig& config) {
  if (config.runner.max_num_seqs < 0) {
    return absl::InvalidArgumentError("--max-num-seqs: at least 1, or 0: chosen");
  }
  if (config.quantization != Quantization::kNone && config.allow_nonfinite) {
    return absl::InvalidArgumentError(absl::StrCat("--quantization: ", NameOf(config.quantization),
                                                   " has no infinity: not with "
                                                   "--allow-nonfinite"));
  }
  if (IsBlocks(config.quantization) && config.dtype == "f64") {
    return absl::InvalidArgumentError("--quantization: q8 and q4 are not for --dtype f64");
  }
  if (config.kv_cache_dtype && config.dtype == "f64") {
    return absl::InvalidArgumentError("--kv-cache-dtype: fp8 is not for --dtype f64");
  }
  if (config.runner.max_num_batched_tokens < 0) {
    return absl::InvalidArgumentError("--max-num-batched-tokens: at least 0");
  }
  constexpr Range kUtilization{0, 1, /*open_low=*/true};
  absl::Status status =
      CheckRange("--gpu-memory-utilization", config.gpu_memory_utilization, kUtilization);
  status.Update(CheckRange("--prefix-cache-share", config.engine.prefix_cache_share, Range{0, 1}));
  if (config.log_tolerance) {
    status.Update(CheckRange("--log-tolerance", *config.log_tolerance, kLogTolerance));
  }
  return status;
}

double LogTolerance(const EngineConfig& config, const ModelConfig& model) {
  return config.log_tolerance.value_or(model.log_pruning_tolerance.value_or(-10.0));
}

}  // namespace

absl::StatusOr<DType> ChooseDType(const std::string& name) {
  if (name == "auto") return CpuHasBf16() ? DType::kBF16 : DType::kF32;
  if (name == "f64") return DType::kF64;
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype: '", name, "' is not one of auto, f64, f32, bf16"));
}

#ifdef FOX_CUDA
namespace {

absl::StatusOr<Backend> MakeCudaBackend(const EngineConfig& config) {
  if (config.dtype != "auto" && config.dtype != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype: '", config.dtype, "' is not available on a GPU (auto, bf16)"));
  }
  std::string error;
  std::unique_ptr<CudaOps> ops = CudaOps::Create(
      {.portable = config.portable_kernels, .overlap = config.overlap_kernels}, &error);
  if (ops == nullptr) return absl::InvalidArgumentError(absl::StrCat("--device: ", error));
  return Backend{std::move(ops), DType::kBF16};
}

}  // namespace
#endif

absl::StatusOr<Backend> MakeBackend(const EngineConfig& config) {
#ifdef FOX_CUDA
  if (config.device == "cuda") return MakeCudaBackend(config);
  if (config.device == "auto" && (config.dtype == "auto" || config.dtype == "bf16")) {
    if (auto backend = MakeCudaBackend(config); backend.ok()) return backend;
  }
#endif
  if (config.device != "cpu" && config.device != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("--device: '", config.device,
                                                   "' is not available in this build (auto, cpu",
                                                   kHasCuda ? ", cuda)" : ")"));
  }
  const absl::StatusOr<DType> dtype = ChooseDType(config.dtype);
  if (!dtype.ok()) return dtype.status();
  return Backend{std::make_unique<CpuOps>(CpuOptions{*dtype, config.plain_gemm, config.threads}),
                 *dtype};
}

namespace {

// The rounding budget of pruning is proved for sizes up to these (kernels/docs/acp.md 3, 5).
constexpr int64_t kMaxPrunedLen = int64_t{1} << 20, kMaxPrunedHiddenSize = int64_t{1} << 15;

// Turns pruning off where nothing decays, and refuses it where it would drop nothing or is not
// proved.
absl::Status LimitPruning(const ModelConfig& config, RunnerOptions& options) {
  if (config.forget_gate == ForgetGate::kNone) options.acp = AcpMode::kOff;
  if (options.acp == AcpMode::kOff) return absl::OkStatus();
  if (options.acp == AcpMode::kPaper && !config.qk_norm && !config.qk_norm_cap) {
    return absl::InvalidArgumentError(
        "--acp paper: the model has neither QK-norm nor norm caps, so the paper's bound would drop "
        "nothing: use --acp certified");
  }
  if (config.hidden_size > kMaxPrunedHiddenSize) {
    return absl::InvalidArgumentError(absl::StrCat("the model's hidden size, ", config.hidden_size,
                                                   ", is above ", kMaxPrunedHiddenSize,
                                                   ", up to which pruning is proved: --acp off"));
  }
  if (options.max_model_len > kMaxPrunedLen) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-model-len ", options.max_model_len, " is above ", kMaxPrunedLen,
                     ", up to which pruning is proved: lower it, or --acp off"));
  }
  return absl::OkStatus();
}

// The host's memory that the engine may use.
MemoryLimit HostMemory(const EngineConfig& config) {
  return WithReserve(AvailableMemory(), config.host_bytes_beside,
                     "calls and the process (3 x --call-memory-mb and 128)");
}

// Throws when memory runs out.
absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const EngineConfig& config) {
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(config.model_dir, {.allow_nonfinite = config.allow_nonfinite});
  if (!checkpoint.ok()) return checkpoint.status();
  absl::StatusOr<Backend> backend = MakeBackend(config);
  if (!backend.ok()) return backend.status();
  DeviceQueue* queue = backend->ops->queue();
  if (queue != nullptr && IsBlocks(config.quantization)) {
    return absl::InvalidArgumentError(
        "--quantization: q8 and q4 are for the CPU (--device cpu); a GPU has fp8");
  }

  RunnerOptions options = config.runner;
  if (absl::Status s = LimitPruning(checkpoint->config(), options); !s.ok()) return s;
  options.dtype = backend->dtype;
  options.kv_dtype = config.kv_cache_dtype.value_or(backend->dtype);
  const int32_t max_seqs = MaxSeqs(config, queue != nullptr);
  RunnerOptions largest = options;
  largest.max_num_seqs = max_seqs;
  largest = WithStepSizes(largest, queue != nullptr);
  // Without --max-model-len the length follows from the memory.
  Workload load = WorkloadOf(checkpoint->config(), largest);
  load.max_seqs = largest.max_num_seqs;  // without padding, for the message
  if (const auto reason = backend->ops->Unsupported(load)) {
    return absl::InvalidArgumentError(*reason);
  }
  // Refuses a model that does not fit before the weights are read.
  const DType residual_dtype = backend->dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const MemoryLimit host = HostMemory(config);
  if (host.bytes == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("--call-memory-mb: ", host.source, " leaves nothing of the host's memory"));
  }
  const MemoryLimit limit =
      queue == nullptr ? host : MemoryLimit{static_cast<int64_t>(queue->free_bytes()), "the GPU"};
  MemoryRequest request{config.kv_cache_bytes, queue == nullptr ? limit.bytes / 4 : limit.bytes,
                        options.max_model_len, config.kv_cache_tokens};
  const MemoryBeside beside{
      WeightBytes(checkpoint->config(), backend->dtype, checkpoint->embeddings().dtype,
                  queue == nullptr && !IsBlocks(config.quantization) ? Quantization::kNone
                                                                     : config.quantization),
      residual_dtype, *backend->ops};
  const absl::StatusOr<RunnerOptions> planned = PlanStepSizes(
      checkpoint->config(), options, max_seqs, queue != nullptr, [&](RunnerOptions& sizes) {
        return PlanMemoryWithin(limit, beside, checkpoint->config(), request, sizes);
      });
  if (!planned.ok()) return planned.status();
  FoxWeights weights = LoadWeights(*checkpoint, *backend->ops, residual_dtype, config.quantization,
                                   options.kv_dtype, config.progress);
  // A file that changed while it was read gave unchecked weights.
  if (absl::Status status = checkpoint->CheckUnchanged(); !status.ok()) return status;
  if (queue == nullptr) {
    options = *planned;
  } else {
    absl::StatusOr<RunnerOptions> left = PlanStepSizes(
        checkpoint->config(), options, max_seqs, /*on_gpu=*/true, [&](RunnerOptions& sizes) {
          request.available_bytes =
              AvailableDeviceBytes(*backend->ops, config.gpu_memory_utilization, weights, sizes);
          return PlanMemory(checkpoint->config(), request, sizes);
        });
    if (!left.ok()) return left.status();
    options = *left;
  }
  auto runner = std::make_unique<ModelRunner>(std::move(backend->ops), std::move(weights), options);
  if (queue != nullptr && queue->error() != nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("GPU: ", queue->error()));
  }
  return runner;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadRunner(const EngineConfig& config) {
  try {
    return MakeRunner(config);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while loading the model");
  } catch (const std::exception& exception) {  // a thread that cannot start, a library
    return absl::ResourceExhaustedError(
        absl::StrCat("loading the model failed: ", exception.what()));
  }
}

absl::StatusOr<LoadedEngine> LoadEngine(const EngineConfig& config) {
  EngineConfig with_snapshots = config;
  if (config.engine.prefix_cache_share > 0) with_snapshots.runner.snapshot_slots = kSnapshotSlots;
  with_snapshots.runner.max_drafts = config.engine.speculation.tokens;
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner = LoadRunner(with_snapshots);
  if (!runner.ok()) return runner.status();
  if (absl::Status status = (*runner)->CaptureGraphs(); !status.ok()) return status;
  LoadedEngine loaded;
  loaded.config = (*runner)->weights().config;
  loaded.options = config.engine;
  loaded.options.acp = (*runner)->options().acp;
  loaded.options.log_tolerance = LogTolerance(config, loaded.config);
  loaded.options.eos_token_ids = loaded.config.eos_token_ids;
  if (config.engine.max_step_seconds == 0 && (*runner)->ops().queue() == nullptr) {
    loaded.options.max_step_seconds = kCpuStepSeconds;
  }
  if ((*runner)->ops().queue() != nullptr) {
    loaded.options.matching_threads =
        static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, kMatchingThreads));
  }
  loaded.memory_plan = DescribeMemory(**runner);
  if (config.host_bytes_beside > 0) {
    absl::StrAppendFormat(&loaded.memory_plan,
                          "  calls, process   %8.1f MiB  (of the host's memory)\n",
                          static_cast<double>(config.host_bytes_beside) / (1 << 20));
  }
  loaded.backend = (*runner)->ops().Description();
  loaded.kv_dtype = NameOf((*runner)->options().kv_dtype);
  loaded.dtype = config.quantization == Quantization::kNone ? NameOf((*runner)->options().dtype)
                                                            : NameOf(config.quantization);
  try {
    loaded.engine = std::make_unique<Engine>(loaded.options, **runner, config.observers);
  } catch (const std::exception& error) {  // a thread that cannot start
    return absl::ResourceExhaustedError(absl::StrCat("starting the engine failed: ", error.what()));
  }
  loaded.executor = std::move(*runner);
  return loaded;
}

std::optional<AcpMode> ParseAcpMode(const std::string& name) {
  if (name == "off") return AcpMode::kOff;
  if (name == "paper") return AcpMode::kPaper;
  if (name == "certified") return AcpMode::kCertified;
  return std::nullopt;
}

const char* NameOf(AcpMode mode) {
  return mode == AcpMode::kOff ? "off" : mode == AcpMode::kPaper ? "paper" : "certified";
}

const char* NameOf(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNone:
      return "none";
    case Quantization::kFp8:
      return "fp8";
    case Quantization::kQ8:
      return "q8";
    case Quantization::kQ4:
      return "q4";
  }
  return "";
}

}  // namespace fox
