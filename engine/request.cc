// ValidateRequest: every range of request.h, checked before anything is queued. Float ranges are
// written so that NaN fails. Messages name the field and never quote a prompt.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"

namespace fox {
namespace {

// More ids to report beside each token than this is a mistake, not a use.
constexpr size_t kMaxLogprobTokenIds = 1024;

absl::Status Invalid(const std::string& field, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", rule));
}

absl::Status CheckIds(const std::string& field, const std::vector<int32_t>& ids, int32_t vocab) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      return Invalid(field, absl::StrCat("token id ", id, " is outside [0, ", vocab, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBias(const std::vector<std::pair<int32_t, float>>& bias, int32_t vocab) {
  std::vector<int32_t> ids;
  ids.reserve(bias.size());
  for (const auto& [id, value] : bias) {
    ids.push_back(id);
    if (!(value >= -100.0f && value <= 100.0f)) {
      return Invalid("logit_bias", "values must be in [-100, 100]");
    }
  }
  if (absl::Status status = CheckIds("logit_bias", ids, vocab); !status.ok()) return status;
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) {
    return Invalid("logit_bias", "token ids must be distinct");
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const SamplingParams& sampling) {
  if (!(sampling.temperature >= 0.0f && sampling.temperature <= 100.0f)) {
    return Invalid("temperature", "must be in [0, 100]");
  }
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    return Invalid("top_p", "must be in (0, 1]");
  }
  if (sampling.top_k < 0) return Invalid("top_k", "must not be negative");
  if (!(sampling.min_p >= 0.0f && sampling.min_p <= 1.0f)) {
    return Invalid("min_p", "must be in [0, 1]");
  }
  if (!(sampling.presence_penalty >= -2.0f && sampling.presence_penalty <= 2.0f)) {
    return Invalid("presence_penalty", "must be in [-2, 2]");
  }
  if (!(sampling.frequency_penalty >= -2.0f && sampling.frequency_penalty <= 2.0f)) {
    return Invalid("frequency_penalty", "must be in [-2, 2]");
  }
  if (!(sampling.repetition_penalty > 0.0f && sampling.repetition_penalty <= 100.0f)) {
    return Invalid("repetition_penalty", "must be in (0, 100]");
  }
  return absl::OkStatus();
}

absl::Status CheckSampling(const SamplingParams& sampling, const EngineOptions& options,
                           int32_t vocab) {
  if (absl::Status status = CheckNumbers(sampling); !status.ok()) return status;
  const std::string logprob_rule = absl::StrCat("must be in [-1, ", options.max_logprobs, "]");
  if (sampling.logprobs < -1 || sampling.logprobs > options.max_logprobs) {
    return Invalid("logprobs", logprob_rule);
  }
  if (sampling.prompt_logprobs < -1 || sampling.prompt_logprobs > options.max_logprobs) {
    return Invalid("prompt_logprobs", logprob_rule);
  }
  if (sampling.logprob_token_ids.size() > kMaxLogprobTokenIds) {
    return Invalid("logprob_token_ids", absl::StrCat("at most ", kMaxLogprobTokenIds));
  }
  if (absl::Status status = CheckBias(sampling.logit_bias, vocab); !status.ok()) return status;
  if (absl::Status status = CheckIds("allowed_token_ids", sampling.allowed_token_ids, vocab);
      !status.ok()) {
    return status;
  }
  return CheckIds("logprob_token_ids", sampling.logprob_token_ids, vocab);
}

// Before min_tokens the stop ids are masked: something must be left to sample.
bool LeavesAToken(const Request& request, const EngineOptions& options, int32_t vocab) {
  std::vector<int32_t> masked = request.stop.stop_token_ids;
  if (!request.stop.ignore_eos) {
    masked.insert(masked.end(), options.eos_token_ids.begin(), options.eos_token_ids.end());
  }
  std::sort(masked.begin(), masked.end());
  masked.erase(std::unique(masked.begin(), masked.end()), masked.end());
  const std::vector<int32_t>& allowed = request.sampling.allowed_token_ids;
  if (allowed.empty()) return masked.size() < static_cast<size_t>(vocab);
  return std::any_of(allowed.begin(), allowed.end(), [&](int32_t id) {
    return !std::binary_search(masked.begin(), masked.end(), id);
  });
}

absl::Status CheckStop(const Request& request, const EngineOptions& options, int32_t vocab) {
  const StopParams& stop = request.stop;
  if (stop.max_tokens < 0) return Invalid("max_tokens", "must not be negative");
  if (stop.min_tokens < 0 || stop.min_tokens > stop.max_tokens) {
    return Invalid("min_tokens", "must be in [0, max_tokens]");
  }
  if (stop.stop_token_ids.size() > static_cast<size_t>(vocab)) {
    return Invalid("stop_token_ids", "more than the vocabulary has");
  }
  if (absl::Status status = CheckIds("stop_token_ids", stop.stop_token_ids, vocab); !status.ok()) {
    return status;
  }
  if (stop.min_tokens > 0 && !LeavesAToken(request, options, vocab)) {
    return Invalid("min_tokens", "every allowed token is a stop token");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRequest(const Request& request, const EngineOptions& options,
                             const ExecutorLimits& limits) {
  if (request.prompt.empty()) return Invalid("prompt", "must hold at least one token");
  // Length first: a hopelessly long prompt costs no scan.
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens >= limits.max_model_len) {
    return absl::OutOfRangeError(absl::StrCat("prompt: ", prompt_tokens,
                                              " tokens leave no room in the context of ",
                                              limits.max_model_len));
  }
  if (limits.lists_per_slot > limits.num_pages) {
    return absl::OutOfRangeError("the page pool is too small for any request");
  }
  const int32_t vocab = limits.vocab_size;
  if (absl::Status status = CheckIds("prompt", request.prompt, vocab); !status.ok()) return status;
  if (absl::Status status = CheckSampling(request.sampling, options, vocab); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckStop(request, options, vocab); !status.ok()) return status;
  if (request.log_tolerance && !(*request.log_tolerance <= options.log_tolerance)) {
    return Invalid("log_tolerance", absl::StrCat("must be at most ", options.log_tolerance));
  }
  if (std::isnan(request.queue_deadline)) return Invalid("queue_deadline", "is not a number");
  if (std::isnan(request.deadline)) return Invalid("deadline", "is not a number");
  if (request.flow_window < 0) return Invalid("flow_window", "must not be negative");
  return absl::OkStatus();
}

}  // namespace fox
