// Sampler: samples one token from one row of logits. A pure function of the row, the parameters,
// the request's token counts and the position: only scratch memory survives a call.
//
// Order, as in vLLM: logit_bias, allowed ids, masked ids, a grammar's mask, penalties (repetition
// over prompt and generated tokens, frequency and presence over generated tokens);
// log-probabilities are taken from that distribution; then temperature, min_p, top_k, top_p; then
// the exponential race of kernels/core/sampling_arithmetic.h among the tokens that are left, with a
// random number for each seed, position and id. Ties go to the lower id everywhere, so top_k keeps
// exactly k tokens. Temperature 0 takes the most likely token. A device samples the same token from
// the same logits.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/request.h"
#include "engine/request/stop_condition.h"
#include "kernels/interface/sampling_params.h"

namespace fox {

// How often each token occurred. Kept only for requests with a penalty that needs it.
class TokenCounts {
 public:
  struct Entry {
    int32_t id = 0;
    int32_t generated = 0;  // times generated; 0: only in the prompt
  };

  void AddPrompt(const std::vector<int32_t>& prompt);  // before any AddGenerated
  void AddGenerated(int32_t id);
  const std::vector<Entry>& entries() const { return entries_; }  // by id, distinct

 private:
  std::vector<Entry> entries_;
};

bool NeedsCounts(const SamplingParams& sampling);

// The parameters with which an executor samples the token at `position` itself, after `produced`
// generated tokens. None: the request asks for more log-probabilities than an executor reports.
std::optional<SampleRow> SampleRowOf(const Request& request, const StopCondition& stop,
                                     int64_t position, int64_t produced);
// The penalty state that a slot needs before that sample.
std::vector<PenaltyEntry> PenaltyEntriesOf(const Request& request, const StopCondition& stop,
                                           const TokenCounts& counts, int64_t produced);

// True if the executor can score the prompt; false: the request asks for more log-probabilities
// than an executor reports, and the host scores rows of logits.
bool ExecutorScores(const SamplingParams& sampling);
// The token of a record with its log-probabilities, of which `logprobs` alternatives were asked
// for; negative: none at all. Internal: a logit is NaN or infinite, or no token is left.
absl::StatusOr<SampledToken> TokenOf(const SampleRecord& record, int32_t logprobs,
                                     int32_t vocab_size);

class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // Samples the token for `position` (its index in prompt + generated) from logits [vocab_size].
  // `masked`: ids that must not be sampled; `may_follow`: a bit for each id, set if the grammar
  // lets it follow; null: all may. Internal: a logit is NaN or infinite, or no token is left.
  absl::StatusOr<SampledToken> Sample(const float* logits, const SamplingParams& params,
                                      const TokenCounts& counts, const std::vector<int32_t>& masked,
                                      uint64_t position, const uint32_t* may_follow = nullptr);

  // The log-probability of the given token and of the `prompt_logprobs` best, in the model's own
  // distribution: without bias, penalties or masks. Internal: a logit is NaN or infinite.
  absl::StatusOr<SampledToken> ScorePrompt(const float* logits, const SamplingParams& params,
                                           int32_t id);

  // The tokens that the filters keep: logits above `least`, and logits equal to it of ids up to
  // `last_id`.
  struct Kept {
    float least = std::numeric_limits<float>::lowest();
    int32_t last_id = std::numeric_limits<int32_t>::max();
  };

 private:
  void ProcessLogits(const SamplingParams& params, const TokenCounts& counts,
                     const std::vector<int32_t>& masked, const uint32_t* may_follow);
  Kept Filter(const float* row, const SamplingParams& params, float largest);
  int32_t TopPEnd(const float* row, const SamplingParams& params, float largest);
  void FillLogprobs(const float* row, float largest, int32_t best,
                    const std::vector<int32_t>& extra, SampledToken* token) const;

  int32_t vocab_size_;
  std::vector<float> row_;            // [vocab] processed logits, -infinity: masked
  std::vector<float> weight_;         // exp(logit - largest), by id
  std::vector<uint64_t> candidates_;  // sort keys: larger is more likely, then the lower id
};

}  // namespace fox
