// Request validation: the checks. Messages name the field and never quote a prompt.
#include "engine/request/request_validation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/request/sampling_limits.h"
#include "kernels/paging/paged_kv.h"

namespace fox {
namespace {

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
  absl::Status status = CheckCount("logit_bias", bias.size(), kMaxLogitBiases);
  std::vector<int32_t> ids;
  ids.reserve(bias.size());
  for (const auto& [id, value] : bias) {
    ids.push_back(id);
    status.Update(CheckRange("logit_bias", value, kLogitBias));
  }
  status.Update(CheckIds("logit_bias", ids, vocab));
  if (!status.ok()) return status;
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) {
    return Invalid("logit_bias", "token ids must be distinct");
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const SamplingParams& sampling) {
  absl::Status status = CheckRange("temperature", sampling.temperature, kTemperature);
  status.Update(CheckRange("top_p", sampling.top_p, kTopP));
  status.Update(CheckRange("min_p", sampling.min_p, kMinP));
  status.Update(CheckRange("presence_penalty", sampling.presence_penalty, kPresencePenalty));
  status.Update(CheckRange("frequency_penalty", sampling.frequency_penalty, kFrequencyPenalty));
  status.Update(CheckRange("repetition_penalty", sampling.repetition_penalty, kRepetitionPenalty));
  if (sampling.top_k < 0) status.Update(Invalid("top_k", "must not be negative"));
  return status;
}

// True if a token is left to sample before min_tokens, when the stop ids are masked.
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
  absl::Status status = CheckCount("stop_token_ids", stop.stop_token_ids.size(),
                                   kMaxStopTokenIds + kMaxDefaultStopTokenIds);
  status.Update(CheckIds("stop_token_ids", stop.stop_token_ids, vocab));
  if (!status.ok()) return status;
  if (request.grammar != nullptr && stop.min_tokens > 0) {
    return Invalid("min_tokens", "must be 0 where the answer has a grammar");
  }
  if (request.grammar != nullptr && !request.sampling.allowed_token_ids.empty()) {
    return Invalid("allowed_token_ids", "must be empty where the answer has a grammar");
  }
  if (stop.min_tokens > 0 && !LeavesAToken(request, options, vocab)) {
    return Invalid("min_tokens", "every allowed token is a stop token");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& sampling, const EngineOptions& options,
                              int32_t vocab) {
  absl::Status status = CheckNumbers(sampling);
  if (!status.ok()) return status;
  const std::string logprob_rule = absl::StrCat("must be in [-1, ", options.max_logprobs, "]");
  if (sampling.logprobs < -1 || sampling.logprobs > options.max_logprobs) {
    return Invalid("logprobs", logprob_rule);
  }
  if (sampling.prompt_logprobs < -1 || sampling.prompt_logprobs > options.max_logprobs) {
    return Invalid("prompt_logprobs", logprob_rule);
  }
  status.Update(
      CheckCount("logprob_token_ids", sampling.logprob_token_ids.size(), kMaxLogprobTokenIds));
  status.Update(CheckIds("logprob_token_ids", sampling.logprob_token_ids, vocab));
  status.Update(CheckBias(sampling.logit_bias, vocab));
  status.Update(CheckIds("allowed_token_ids", sampling.allowed_token_ids, vocab));
  return status;
}

absl::Status ValidateRequest(const Request& request, const EngineOptions& options,
                             const ExecutorLimits& limits) {
  if (request.prompt.empty()) return Invalid("prompt", "must hold at least one token");
  // Length first: a hopelessly long prompt costs no scan.
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens >= limits.max_model_len) {
    return absl::OutOfRangeError(absl::StrCat(
        "prompt: ", prompt_tokens, " tokens leave no room. This model's maximum context length is ",
        limits.max_model_len, " tokens"));
  }
  if (limits.lists_per_slot > limits.num_pages) {
    return absl::OutOfRangeError("the page pool is too small for any request");
  }
  if (options.acp == AcpMode::kOff &&
      PagesFor(prompt_tokens) * limits.lists_per_slot > limits.num_pages) {
    return absl::OutOfRangeError(
        absl::StrCat("prompt: ", prompt_tokens, " tokens do not fit into the page pool"));
  }
  const int32_t vocab = limits.vocab_size;
  if (absl::Status status = CheckIds("prompt", request.prompt, vocab); !status.ok()) return status;
  if (absl::Status status = ValidateSampling(request.sampling, options, vocab); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckStop(request, options, vocab); !status.ok()) return status;
  if (options.priority_scheduling && request.priority < options.min_priority) {
    return Invalid("priority", absl::StrCat("must be at least ", options.min_priority));
  }
  if (request.log_tolerance && !(*request.log_tolerance <= options.log_tolerance)) {
    return Invalid("log_tolerance", absl::StrCat("must be at most ", options.log_tolerance));
  }
  if (request.prompt_rows != nullptr) {
    if (request.sampling.prompt_logprobs >= 0 || request.stop.max_tokens > 0) {
      return Invalid("prompt_rows", "need a prompt alone, without log-probabilities");
    }
    if (request.prompt_rows->first < 0 || request.prompt_rows->first >= prompt_tokens - 1) {
      return Invalid("prompt_rows", "begin behind the prompt's last row but one");
    }
    const auto rows = static_cast<size_t>(prompt_tokens - 1 - request.prompt_rows->first);
    if (request.prompt_rows->logits.size() != rows * static_cast<size_t>(vocab)) {
      return Invalid("prompt_rows", "have no room for a row of logits each");
    }
  }
  if (std::isnan(request.queue_deadline)) return Invalid("queue_deadline", "is not a number");
  if (std::isnan(request.deadline)) return Invalid("deadline", "is not a number");
  if (request.flow_window < 0) return Invalid("flow_window", "must not be negative");
  return absl::OkStatus();
}

}  // namespace fox
