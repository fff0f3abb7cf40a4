// fox-eval: common flags and input files.
#include "engine/eval/eval_command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "models/checkpoint/json_reader.h"
#include "models/checkpoint/model_dir.h"

namespace fox {

void EvalFlags::Register(FlagSet& flags) {
  flags.Group("Model");
  flags.String("model", "DIR", "model directory", &model);
  flags.Choice("device", {"auto", "cpu", "cuda"}, "where to compute", &device);
  flags.DTypeChoice("dtype", "weights and KV pages", &dtype);
  AddQuantization(&flags, &quantization);
  AddKvCacheDType(&flags, &kv_cache_dtype);
  flags.Choice("acp", {"off", "paper", "certified"}, "which bound drops pages", &acp);
  flags.OptionalDouble("log-tolerance", "X", "log eps [the checkpoint's, or -10]", &log_tolerance);
  flags.Int("chunk", "N", "prefill tokens a step", 1, 1 << 20, &chunk);
  flags.Int("threads", "N", "0: one per core", 0, 4096, &threads);
  flags.Bool("plain-gemm", "row-independent matrix products (CPU)", &plain_gemm);
  flags.Bool("enforce-eager", "no CUDA graphs", &enforce_eager);
}

EngineConfig EvalFlags::Config(int64_t tokens) const {
  EngineConfig config;
  config.model_dir = model;
  config.device = device;
  config.dtype = dtype;
  config.quantization = quantization;
  config.kv_cache_dtype = kv_cache_dtype;
  config.runner.acp = *ParseAcpMode(acp);
  config.log_tolerance = log_tolerance;
  config.threads = static_cast<int>(threads);
  config.kv_cache_tokens = tokens;
  config.gpu_memory_utilization = 1;  // all free memory may be used; little of it will be
  config.runner.max_model_len = tokens;
  config.runner.max_num_seqs = 1;
  config.runner.max_num_batched_tokens = std::min(chunk, tokens);
  config.runner.max_logit_rows = config.runner.max_num_batched_tokens;
  config.plain_gemm = plain_gemm;
  config.runner.enforce_eager = enforce_eager;
  return config;
}

double EvalFlags::Tolerance(const ModelConfig& config) const {
  if (acp == "off") return -std::numeric_limits<double>::infinity();
  return log_tolerance.value_or(config.log_pruning_tolerance.value_or(-10.0));
}

absl::Status ParseOrHelp(FlagSet& flags, const std::vector<std::string>& arguments,
                         const std::string& command) {
  for (const std::string& argument : arguments) {
    if (argument != "--help" && argument != "-h") continue;
    std::printf("usage: %s [flags]\n%s", command.c_str(), flags.Help().c_str());
    std::exit(0);
  }
  if (absl::Status status = flags.Parse(arguments); !status.ok()) return status;
  if (flags.positional().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unexpected '", flags.positional()[0], "'"));
}

absl::Status Require(const std::string& value, const char* flag) {
  if (!value.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " is required"));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

absl::Status WriteJson(const std::string& path, const nlohmann::ordered_json& json) {
  std::ofstream out(path);
  out << json.dump(1) << '\n';
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const std::string& path) {
  constexpr JsonLimits kLimits{.max_bytes = size_t{1} << 30, .max_depth = 2, .max_values = 1 << 28};
  const auto text = ReadFile(path);
  if (!text.ok()) return text.status();
  const auto json = ReadJson(*text, kLimits, path);
  if (!json.ok()) return json.status();
  if (!json->is_array() || json->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON list of token ids"));
  }
  std::vector<int32_t> ids;
  for (const auto& value : *json) {
    const auto id = value.is_number_integer() ? value.get<int64_t>() : -1;
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": entry ", ids.size(), " is no token id"));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

absl::StatusOr<ModelConfig> ReadConfig(const std::string& model) {
  const auto dir = ModelDir::Open(model);
  if (!dir.ok()) return dir.status();
  return ReadModelConfig(*dir);
}

}  // namespace fox
