// Engine factory: checkpoint, backend, memory plan, runner, engine.
#include "engine/engine_factory.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <new>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/request/sampling_limits.h"
#include "engine/run/memory_budget.h"
#include "engine/store/disk_store.h"
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

// One buffer may save a snapshot while the other reads one. A buffer holds at most a GiB (a
// snapshot of 25k tokens of a 760M model), and at most this part of the backend's memory.
constexpr int32_t kStagingBuffers = 2;
constexpr int64_t kMaxStagingBytes = int64_t{1} << 30, kMemoryPerStagingByte = 32;
// Threads that read a snapshot: one reads and checks 4 GB/s, a GPU takes 55, and on an H200's host
// 32 threads came closer to that than 24 or 16.
constexpr unsigned kMaxReadThreads = 32;

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
  const Quantization quantization = config.quantization.value_or(Quantization::kNone);
  if (quantization != Quantization::kNone && config.allow_nonfinite) {
    return absl::InvalidArgumentError(absl::StrCat("--quantization: ", NameOf(quantization),
                                                   " has no infinity: not with "
                                                   "--allow-nonfinite"));
  }
  if (IsBlocks(quantization) && config.dtype == "f64") {
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
  if (!config.prefix_store.dir.empty() && config.engine.prefix_cache_share == 0) {
    status.Update(absl::InvalidArgumentError(
        "--prefix-cache-dir: there is no prefix cache: --prefix-cache-share is 0"));
  }
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

// The hash of everything that decides the bits of a loaded checkpoint's results. All cores read the
// weights once more. InvalidArgument: they have changed meanwhile.
absl::StatusOr<Sha256Digest> IdentityOf(const EngineConfig& config, const Checkpoint& checkpoint,
                                        const ModelRunner& runner) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(config.model_dir);
  if (!dir.ok()) return dir.status();
  const absl::StatusOr<std::string> config_json = ReadConfigText(*dir);
  if (!config_json.ok()) return config_json.status();
  constexpr size_t kChunk = 16 << 20;
  std::vector<std::span<const std::byte>> chunks;
  for (std::span<const std::byte> file : checkpoint.contents()) {
    for (; file.size() > kChunk; file = file.subspan(kChunk)) chunks.push_back(file.first(kChunk));
    chunks.push_back(file);
  }
  std::vector<Sha256Digest> digests(chunks.size());
  ThreadPool pool(StartThreads());
  pool.ForEach(static_cast<int64_t>(chunks.size()), true, [&](int64_t i) {
    Sha256 hash;
    hash.Add(chunks[static_cast<size_t>(i)].data(), chunks[static_cast<size_t>(i)].size());
    digests[static_cast<size_t>(i)] = hash.Get();
  });
  const PagedKvShape& shape = runner.cache().shape;
  const RunnerOptions& options = runner.options();
  Sha256 hash;
  for (const std::string& text :
       {std::string("foxserve snapshot 3"), config.prefix_store.version, *config_json,
        runner.ops().Description(), std::string(NameOf(options.dtype)),
        std::string(NameOf(options.kv_dtype)), std::string(NameOf(runner.weights().quantization)),
        std::string(NameOf(options.acp)),
        absl::StrCat(config.plain_gemm, config.portable_kernels, config.overlap_kernels, " ",
                     shape.layers, " ", shape.q_heads, " ", shape.kv_heads, " ", shape.head_dim,
                     " ", shape.history, " ", shape.k_shift, shape.v_shift, " ",
                     std::endian::native == std::endian::little)}) {
    hash.AddText(text);
  }
  hash.Add(digests.data(), digests.size() * sizeof(Sha256Digest));
  if (absl::Status status = checkpoint.CheckUnchanged(); !status.ok()) return status;
  return hash.Get();
}

int64_t MaxStagingBytes(const MemoryLimit& limit) {
  return std::min(kMaxStagingBytes, limit.bytes / kMemoryPerStagingByte);
}

// Adds staging buffers for the largest snapshot that the cache may have, of at most `most` bytes.
void AddStaging(const ModelConfig& model, double share, int64_t most, RunnerOptions* options) {
  const PagedKvShape shape = CacheShape(model, *options);
  const auto pages = static_cast<int64_t>(share * shape.num_pages);
  options->staging_buffers = kStagingBuffers;
  options->staging_bytes = std::min(most, static_cast<int64_t>(SlotImageBytes(shape, pages)));
}

// The configured quantization; if there is none, the blocks of the checkpoint, on a CPU whose type
// of weights is not configured either.
Quantization QuantizationOf(const EngineConfig& config, const ModelConfig& model, bool on_gpu) {
  if (config.quantization) return *config.quantization;
  if (on_gpu || config.dtype != "auto" || config.allow_nonfinite) return Quantization::kNone;
  return model.weight_blocks == "q8"   ? Quantization::kQ8
         : model.weight_blocks == "q4" ? Quantization::kQ4
                                       : Quantization::kNone;
}

// Refuses weights and sizes that the backend cannot serve.
absl::Status CheckWorkload(const ModelConfig& model, RunnerOptions options, int32_t max_seqs,
                           Quantization quantization, Ops& ops) {
  if (ops.queue() != nullptr && IsBlocks(quantization)) {
    return absl::InvalidArgumentError(
        "--quantization: q8 and q4 are for the CPU (--device cpu); a GPU has fp8");
  }
  options.max_num_seqs = max_seqs;
  options = WithStepSizes(options, ops.queue() != nullptr);
  // Without --max-model-len the length follows from the memory.
  Workload load = WorkloadOf(model, options);
  load.max_seqs = options.max_num_seqs;  // without padding, for the message
  const auto reason = ops.Unsupported(load);
  return reason ? absl::InvalidArgumentError(*reason) : absl::OkStatus();
}

// Throws when memory runs out. `identity`: null, or to be filled in for a store.
absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const EngineConfig& config,
                                                        Sha256Digest* identity) {
  absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(config.model_dir, {.allow_nonfinite = config.allow_nonfinite});
  if (!checkpoint.ok()) return checkpoint.status();
  absl::StatusOr<Backend> backend = MakeBackend(config);
  if (!backend.ok()) return backend.status();
  DeviceQueue* queue = backend->ops->queue();
  RunnerOptions options = config.runner;
  if (absl::Status s = LimitPruning(checkpoint->config(), options); !s.ok()) return s;
  options.dtype = backend->dtype;
  options.kv_dtype = config.kv_cache_dtype.value_or(backend->dtype);
  const int32_t max_seqs = MaxSeqs(config, queue != nullptr);
  const Quantization quantization = QuantizationOf(config, checkpoint->config(), queue != nullptr);
  if (absl::Status status =
          CheckWorkload(checkpoint->config(), options, max_seqs, quantization, *backend->ops);
      !status.ok()) {
    return status;
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
  const int64_t staging = identity == nullptr ? 0 : MaxStagingBytes(limit);
  const MemoryBeside beside{
      WeightBytes(checkpoint->config(), backend->dtype, checkpoint->embeddings().dtype,
                  queue == nullptr && !IsBlocks(quantization) ? Quantization::kNone : quantization),
      kStagingBuffers * staging, residual_dtype, *backend->ops};
  const absl::StatusOr<RunnerOptions> planned = PlanStepSizes(
      checkpoint->config(), options, max_seqs, queue != nullptr, [&](RunnerOptions& sizes) {
        return PlanMemoryWithin(limit, beside, checkpoint->config(), request, sizes);
      });
  if (!planned.ok()) return planned.status();
  FoxWeights weights = LoadWeights(*checkpoint, *backend->ops, residual_dtype, quantization,
                                   options.kv_dtype, config.progress);
  // A file that changed while it was read gave unchecked weights.
  if (absl::Status status = checkpoint->CheckUnchanged(); !status.ok()) return status;
  if (queue == nullptr) {
    options = *planned;
  } else {
    absl::StatusOr<RunnerOptions> left = PlanStepSizes(
        checkpoint->config(), options, max_seqs, /*on_gpu=*/true, [&](RunnerOptions& sizes) {
          const int64_t available =
              AvailableDeviceBytes(*backend->ops, config.gpu_memory_utilization, weights, sizes);
          request.available_bytes = std::max<int64_t>(0, available - beside.staging);
          return PlanMemory(checkpoint->config(), request, sizes);
        });
    if (!left.ok()) return left.status();
    options = *left;
  }
  if (identity != nullptr) {
    AddStaging(checkpoint->config(), config.engine.prefix_cache_share, staging, &options);
  }
  auto runner = std::make_unique<ModelRunner>(std::move(backend->ops), std::move(weights), options);
  if (queue != nullptr && queue->error() != nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("GPU: ", queue->error()));
  }
  if (identity == nullptr) return runner;
  const absl::StatusOr<Sha256Digest> found = IdentityOf(config, *checkpoint, *runner);
  if (!found.ok()) return found.status();
  *identity = *found;
  return runner;
}

absl::StatusOr<std::unique_ptr<ModelRunner>> Load(const EngineConfig& config,
                                                  Sha256Digest* identity) {
  try {
    return MakeRunner(config, identity);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while loading the model");
  } catch (const std::exception& exception) {  // a thread that cannot start, a library
    return absl::ResourceExhaustedError(
        absl::StrCat("loading the model failed: ", exception.what()));
  }
}

// Opened before the model is loaded, so that an error is reported at once. Null: there is none.
absl::StatusOr<std::unique_ptr<FileSystem>> OpenStoreDir(const PrefixStoreConfig& config) {
  if (config.dir.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<FileSystem>> files = OpenDirectory(config.dir);
  if (files.ok()) return files;
  return absl::InvalidArgumentError(absl::StrCat("--prefix-cache-dir: ", files.status().message()));
}

std::unique_ptr<SnapshotStore> MakeStore(const PrefixStoreConfig& config, ModelRunner& runner,
                                         const Sha256Digest& identity,
                                         std::unique_ptr<FileSystem> files) {
  DiskStoreOptions options;
  options.format = {identity, runner.cache().shape};
  options.queue = runner.ops().queue();
  options.max_bytes = config.max_gb * 1'000'000'000;
  const unsigned cores = std::thread::hardware_concurrency();
  options.read_threads = static_cast<int>(std::clamp(cores, 1U, kMaxReadThreads));
  options.warn = config.warn;
  std::vector<std::span<std::byte>> buffers;
  for (int32_t i = 0; i < runner.limits().staging_buffers; ++i) {
    buffers.emplace_back(runner.StagingBuffer(i),
                         static_cast<size_t>(runner.limits().staging_bytes));
  }
  return std::make_unique<DiskStore>(std::move(files), std::move(buffers), std::move(options));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadRunner(const EngineConfig& config) {
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  return Load(config, nullptr);
}

absl::StatusOr<LoadedEngine> LoadEngine(const EngineConfig& config) {
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  EngineConfig with_snapshots = config;
  if (config.engine.prefix_cache_share > 0) with_snapshots.runner.snapshot_slots = kSnapshotSlots;
  with_snapshots.runner.max_drafts = config.engine.speculation.tokens;
  absl::StatusOr<std::unique_ptr<FileSystem>> files = OpenStoreDir(config.prefix_store);
  if (!files.ok()) return files.status();
  Sha256Digest identity;
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner =
      Load(with_snapshots, *files == nullptr ? nullptr : &identity);
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
  const Quantization quantization = (*runner)->weights().quantization;
  loaded.dtype = quantization == Quantization::kNone ? NameOf((*runner)->options().dtype)
                                                     : NameOf(quantization);
  try {
    if (*files != nullptr) {
      loaded.store = MakeStore(config.prefix_store, **runner, identity, *std::move(files));
      if (absl::Status status = (*runner)->Probe(); !status.ok()) return status;
    }
    loaded.engine =
        std::make_unique<Engine>(loaded.options, **runner, config.observers, loaded.store.get());
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
