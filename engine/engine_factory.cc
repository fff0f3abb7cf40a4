// Puts the parts together. See engine_factory.h.
#include "engine/engine_factory.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/memory_budget.h"
#include "kernels/cpu/cpu_ops.h"
#include "models/checkpoint.h"

namespace fox {
namespace {

absl::Status CheckConfig(const EngineConfig& config) {
  if (config.device != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: '", config.device, "' is not available in this build (cpu)"));
  }
  if (config.max_num_seqs < 1) return absl::InvalidArgumentError("--max-num-seqs: at least 1");
  if (config.max_num_batched_tokens < 1) {
    return absl::InvalidArgumentError("--max-num-batched-tokens: at least 1");
  }
  // eps >= 1 would let everything be dropped.
  if (config.log_tolerance &&
      !(*config.log_tolerance < 0 && std::isfinite(*config.log_tolerance))) {
    return absl::InvalidArgumentError("--log-tolerance: must be finite and below 0");
  }
  return absl::OkStatus();
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

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadRunner(const EngineConfig& config) {
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  const absl::StatusOr<DType> dtype = ChooseDType(config.dtype);
  if (!dtype.ok()) return dtype.status();
  CheckpointOptions checkpoint_options;
  checkpoint_options.allow_nonfinite = config.allow_nonfinite;
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(config.model_dir, checkpoint_options);
  if (!checkpoint.ok()) return checkpoint.status();

  RunnerOptions options;
  options.acp = config.acp;
  options.kv_dtype = *dtype;
  options.max_slots = config.max_num_seqs;
  // A decode step brings one row for every sequence, and each of them wants logits.
  options.max_batch_tokens = std::max<int64_t>(config.max_num_batched_tokens, config.max_num_seqs);
  options.max_logit_rows = std::max<int64_t>(
      config.max_logit_rows > 0 ? config.max_logit_rows : 128, config.max_num_seqs);
  const MemoryRequest request{config.kv_cache_bytes, config.max_model_len};
  if (absl::Status status = PlanMemory(checkpoint->config(), request, options); !status.ok()) {
    return status;
  }
  auto ops = std::make_unique<CpuOps>(CpuOptions{*dtype, config.plain_gemm, config.threads});
  const DType wide = *dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  FoxWeights weights = LoadWeights(*checkpoint, *ops, wide, config.progress);
  // A file that changed while it was read gave weights that nobody checked.
  if (absl::Status status = checkpoint->CheckUnchanged(); !status.ok()) return status;
  return std::make_unique<ModelRunner>(std::move(ops), std::move(weights), options);
}

absl::StatusOr<LoadedEngine> LoadEngine(const EngineConfig& config) {
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner = LoadRunner(config);
  if (!runner.ok()) return runner.status();
  LoadedEngine loaded;
  loaded.config = (*runner)->weights().config;
  loaded.options.acp = config.acp;
  loaded.options.log_tolerance = LogTolerance(config, loaded.config);
  loaded.options.max_queued_requests = config.max_queued_requests;
  loaded.options.max_queued_tokens = config.max_queued_tokens;
  loaded.options.priority_scheduling = config.priority_scheduling;
  loaded.options.eos_token_ids = loaded.config.eos_token_ids;
  loaded.options.max_logprobs = config.max_logprobs;
  loaded.memory_plan = DescribeMemory((*runner)->weights(), (*runner)->options());
  loaded.backend = (*runner)->ops().Description();
  loaded.dtype = NameOf((*runner)->options().kv_dtype);
  loaded.engine = std::make_unique<Engine>(loaded.options, **runner);
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
  switch (mode) {
    case AcpMode::kOff:
      return "off";
    case AcpMode::kPaper:
      return "paper";
    default:
      return "certified";
  }
}

}  // namespace fox
