// Request: what a caller asks of the engine, tokens only; and the events that come back.
// Text, tokenizers and stop strings live in models/tokenizer.
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
  float top_p = 1.0f;               // the smallest set of tokens with that much probability
  int32_t top_k = 0;                // 0: off
  float min_p = 0.0f;               // relative to the likeliest token
  float presence_penalty = 0.0f;    // over generated tokens
  float frequency_penalty = 0.0f;   // over generated tokens
  float repetition_penalty = 1.0f;  // over prompt and generated tokens
  uint64_t seed = 0;                // Philox key; the counter is made of position and id
  std::vector<std::pair<int32_t, float>> logit_bias;  // distinct ids
  std::vector<int32_t> allowed_token_ids;             // empty: all
  int32_t logprobs = -1;         // alternatives per generated token; 0: the token's own; -1: none
  int32_t prompt_logprobs = -1;  // the same for prompt tokens
  std::vector<int32_t> logprob_token_ids;  // always reported beside the above
};

struct StopParams {
  int32_t max_tokens = 16;  // 0: score the prompt only
  int32_t min_tokens = 0;   // eos and stop ids are excluded from sampling before that
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
};

struct Request {
  RequestId id = 0;
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  StopParams stop;
  std::shared_ptr<const Grammar> grammar;  // of the answer; null: any
  int32_t priority = 0;  // lower runs earlier, where the engine schedules by priority
  uint64_t client = 0;   // whose turn it takes: clients share the queue evenly
  // log eps of this request: at most the engine's (stricter), or -infinity: prune nothing.
  std::optional<double> log_tolerance;
  Seconds queue_deadline = kNever;  // must have started by then
  Seconds deadline = kNever;        // must have finished by then
  // Tokens that may be produced ahead of Engine::Acknowledge; then the sequence pauses until half
  // of them are acknowledged. 0: unlimited.
  int32_t flow_window = 0;
  std::string cache_salt;            // prefixes are shared among requests of the same salt alone
  uint64_t tenant = 0;               // whose part of the prefix cache they take
  bool bypass_prefix_cache = false;  // uses no snapshots and leaves none
  bool report_windows = false;       // RequestOutput::windows, some times a second
  std::string trace_parent;          // W3C traceparent of the call, for observers; empty: none
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;
  int32_t rank = 0;  // 1 is the most likely
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0.0f;           // of the model's distribution after penalties and bias, before
                                  // temperature and filters; valid when logprobs were asked for
  int32_t rank = 0;               // likewise
  std::vector<TokenLogprob> top;  // the `logprobs` best, then logprob_token_ids
};

// Why a request ended well. Deadlines and failures are a status, never a reason.
enum class FinishReason : uint8_t { kStop, kLength, kAbort };

struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, that were not computed
  int32_t preemptions = 0;
  int32_t swaps = 0;  // how often it came back from swap space, not computed again
  Seconds arrival = 0, first_scheduled = 0, first_token = 0, finished = 0;
  AcpStats acp;
};

struct Finish {
  // Not ok: DeadlineExceeded, Cancelled, Aborted (a stalled reader), Internal, InvalidArgument (its
  // grammar cannot be followed), OutOfRange (the pool is too small), ResourceExhausted (displaced,
  // never started), Unavailable.
  absl::Status status;
  FinishReason reason = FinishReason::kStop;  // when ok
  std::optional<int32_t> stop_token_id;       // the id that stopped it; it is in no output
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

// What each head keeps of a sequence after a step.
struct KeptWindows {
  int64_t tokens = 0;  // in the cache: PagesFor(tokens) pages, but for those evicted
  // [layers, kv heads]: the first page that is kept.
  std::vector<int32_t> first_pages;
  AcpStats acp;  // of the request so far
};

// What one step did for one request. Tokens are new ones, in order; each is given exactly once.
struct RequestOutput {
  RequestId id = 0;
  std::vector<SampledToken> tokens;
  // Prompt log-probabilities for positions 1 .. n-1 as they become known, in order.
  std::vector<SampledToken> prompt_logprobs;
  std::optional<KeptWindows> windows;  // where Request::report_windows asks for them
  std::optional<Finish> finish;        // the last output of this request
};

}  // namespace fox
