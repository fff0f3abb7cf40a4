// EvalFlags: the common flags of fox-eval's subcommands; and the function of each subcommand.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/flag_set.h"
#include "engine/engine_factory.h"

namespace fox {

// --model and the flags that every subcommand takes.
struct EvalFlags {
  std::string model;
  std::string device = "cpu";
  std::string dtype = "auto";
  Quantization quantization = Quantization::kNone;
  std::optional<DType> kv_cache_dtype;
  std::string acp = "certified";
  std::optional<double> log_tolerance;  // unset: the checkpoint's own, else -10
  int64_t chunk = 512;
  int64_t threads = 0;
  bool plain_gemm = false, enforce_eager = false;

  void Register(FlagSet& flags);
  // A configuration for one sequence of at most `tokens` tokens, which fits without pruning. It
  // takes no more memory than that.
  EngineConfig Config(int64_t tokens) const;
  // log eps of the run; -infinity if `acp` is off.
  double Tolerance(const ModelConfig& config) const;
};

// Parses; after --help, prints the flags and ends the process.
absl::Status ParseOrHelp(FlagSet& flags, const std::vector<std::string>& arguments,
                         const std::string& command);
// InvalidArgument when the flag was not given.
absl::Status Require(const std::string& value, const char* flag);

// A JSON list of token ids.
absl::StatusOr<std::vector<int32_t>> ReadIds(const std::string& path);
absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteJson(const std::string& path, const nlohmann::ordered_json& json);
// The config.json of a model directory.
absl::StatusOr<ModelConfig> ReadConfig(const std::string& model);

using Arguments = std::vector<std::string>;
absl::Status EvalLogits(const Arguments& arguments);
absl::Status EvalGreedy(const Arguments& arguments);
absl::Status EvalPerplexity(const Arguments& arguments);
absl::Status EvalAcp(const Arguments& arguments);

}  // namespace fox
