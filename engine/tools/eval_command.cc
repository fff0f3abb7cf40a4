// Common flags and input files of fox-eval.
#include "engine/tools/eval_command.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace fox {

void EvalFlags::Register(FlagSet& flags) {
  flags.Group("Model");
  flags.String("model", "DIR", "model directory", &model);
  flags.Choice("device", {"auto", "cpu", "cuda"}, "where to compute", &device);
  flags.Choice("dtype", {"auto", "f64", "f32", "bf16"}, "weights and KV pages", &dtype);
  flags.Choice("acp", {"off", "paper", "certified"}, "which bound drops pages", &acp);
  flags.OptionalDouble("log-tolerance", "X", "log eps [the checkpoint's, or -10]", &log_tolerance);
  flags.Int("chunk", "N", "prefill tokens a step", 1, 1 << 20, &chunk);
  flags.Int("threads", "N", "0: one per core", 0, 4096, &threads);
  flags.Bool("plain-gemm", "row-independent matrix products (CPU)", &plain_gemm);
  flags.Bool("enforce-eager", "no CUDA graphs", &enforce_eager);
}

EngineConfig EvalFlags::Config(int64_t max_model_len) const {
  EngineConfig config;
  config.model_dir = model;
  config.device = device;
  config.dtype = dtype;
  config.acp = *ParseAcpMode(acp);
  config.log_tolerance = log_tolerance;
  config.threads = static_cast<int>(threads);
  config.max_model_len = max_model_len;
  config.max_num_seqs = 1;
  config.max_num_batched_tokens = chunk;
  config.max_logit_rows = chunk;
  config.plain_gemm = plain_gemm;
  config.enforce_eager = enforce_eager;
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
  if (absl::Status status = flags.Parse(arguments, nullptr); !status.ok()) return status;
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

absl::StatusOr<std::vector<int32_t>> ReadIds(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text.ok()) return text.status();
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_array() || json.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON list of token ids"));
  }
  std::vector<int32_t> ids;
  for (const auto& id : json) {
    if (!id.is_number_integer()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " holds something that is no integer"));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace fox
