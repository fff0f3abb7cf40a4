// Request: a caller's request to the engine, in tokens, and RequestOutput: the events that come
// back. Text, tokenizers and stop strings are in models/tokenizer.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/request/acp_stats.h"

namespace fox {

class Grammar;

using RequestId = uint64_t;

// Seconds on the caller's monotonic clock. The engine never reads a clock.
using Seconds = double;
inline constexpr Seconds kNever = std::numeric_limits<double>::infinity();

// Ranges: engine/request/sampling_limits.h, checked by ValidateRequest.
struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy
  float top_p = 1.0f;               // the smallest set of tokens with this probability
  int32_t top_k = 0;                // 0: off
  float min_p = 0.0f;               // relative to the likeliest token
  float presence_penalty = 0.0f;    // over generated tokens
  float frequency_penalty = 0.0f;   // over generated tokens
  float repetition_penalty = 1.0f;  // over prompt and generated tokens
  uint64_t seed = 0;                // Philox key; the counter is made of position and id
  std::vector<std::pair<int32_t, float>> logit_bias;  // distinct ids
  std::vector<int32_t> allowed_token_ids;             // empty: all
  int32_t logprobs = -1;         // alternatives per generated token; 0: the token's own; -1: none
  int32_t prompt_logprobs = -1;  // alternatives per prompt token, likewise
  std::vector<int32_t> logprob_token_ids;  // always reported beside the above
};

struct StopParams {
  int32_t max_tokens = 16;  // 0: score the prompt only
  int32_t min_tokens = 0;   // eos and stop ids are excluded from sampling before that
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
};

// Rows of a prompt's logits, to compare distributions. The engine's thread writes them until the
// request's last output. Their memory is there, and was written to once, before the request: its
// first page faults would cost that thread several ms.
struct PromptRows {
  int64_t first = 0;          // position of the first row
  std::vector<float> logits;  // [rows, V], of positions first, first + 1, .., the last but one
};

struct Request {
  RequestId id = 0;
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  StopParams stop;
  std::shared_ptr<const Grammar> grammar;  // of the answer; null: any
  int32_t priority = 0;  // lower runs earlier, where the engine schedules by priority
  uint64_t client = 0;   // clients share the queue and the running slots evenly
  // log eps of this request: at most the engine's (stricter), or -infinity: prune nothing.
  std::optional<double> log_tolerance;
  Seconds queue_deadline = kNever;  // the request must have started by then
  Seconds deadline = kNever;        // the request must have finished by then
  // Tokens that may be produced before Engine::Acknowledge; then the sequence pauses until half of
  // them are acknowledged. 0: unlimited.
  int32_t flow_window = 0;
  std::string cache_salt;            // only requests with the same salt share prefixes
  uint64_t tenant = 0;               // its prefixes count for this tenant's part of the cache
  bool bypass_prefix_cache = false;  // uses no snapshots and leaves none
  bool report_windows = false;       // asks for RequestOutput::windows, some times a second
  // Rows of the prompt to keep. REQUIRES: max_tokens is 0, no prompt_logprobs, and room for each
  // row.
  std::shared_ptr<PromptRows> prompt_rows;
  std::string trace_parent;  // W3C traceparent of the call, for observers; empty: none
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;
  int32_t rank = 0;  // 1 is the most likely
};

struct SampledToken {
  int32_t id = 0;
  // In the model's distribution after penalties and bias, before temperature and filters. Valid if
  // the request has logprobs >= 0.
  float logprob = 0.0f;
  int32_t rank = 0;
  std::vector<TokenLogprob> top;  // the `logprobs` best, then logprob_token_ids
};

// Why a request ended well. Deadlines and failures are a status, never a reason.
enum class FinishReason : uint8_t { kStop, kLength, kAbort };

struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // part of prompt_tokens that came from the prefix cache
  int32_t preemptions = 0;
  Seconds arrival = 0, first_scheduled = 0, first_token = 0, finished = 0;
  AcpStats acp;
};

struct Finish {
  // Not ok: DeadlineExceeded, Cancelled, Aborted (a stalled reader), Internal, InvalidArgument (the
  // grammar cannot be followed), OutOfRange (the pool is too small), ResourceExhausted (displaced,
  // never started), Unavailable.
  absl::Status status;
  FinishReason reason = FinishReason::kStop;  // when ok
  std::optional<int32_t> stop_token_id;       // the stop token, which is in no output
  bool eos = false;
  RequestStats stats;

  static Finish With(absl::Status status) {
    Finish finish;
    finish.status = std::move(status);
    return finish;
  }
  static Finish For(FinishReason reason) {
    Finish finish;
    finish.reason = reason;
    return finish;
  }
};

// The pages that each head keeps of a sequence after a step.
struct KeptWindows {
  int64_t tokens = 0;  // in the cache: PagesFor(tokens) pages of each head, less the evicted pages
  // [layers, kv heads]: the first page that the head keeps.
  std::vector<int32_t> first_pages;
  AcpStats acp;  // of the request so far
};

// News of one request after a step. `tokens` are new, in order, and each is given exactly once.
struct RequestOutput {
  RequestId id = 0;
  std::vector<SampledToken> tokens;
  // Prompt log-probabilities for positions 1 .. n-1 as they become known, in order.
  std::vector<SampledToken> prompt_logprobs;
  std::optional<KeptWindows> windows;  // see Request::report_windows
  std::optional<Finish> finish;        // set in the request's last output
};

}  // namespace fox
