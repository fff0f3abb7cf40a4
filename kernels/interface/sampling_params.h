// Parameters of sampling and scoring on the device: how each row is sampled or which token is
// scored, and the result.
#pragma once

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/matrix_view.h"

namespace fox {

// A slot's sampling state of one token of the vocabulary. Ops::Sample reads it if a logits
// processor is on, and counts the token that it samples.
struct alignas(8) TokenPenaltyState {
  float bias = 0;     // added to its logit
  uint32_t bits = 0;  // the flags below, and how often it was generated
};
inline constexpr uint32_t kTokenAllowed = uint32_t{1} << 31;
inline constexpr uint32_t kTokenStops = uint32_t{1} << 30;
inline constexpr uint32_t kTokenInPrompt = uint32_t{1} << 29;
inline constexpr uint32_t kTokenGenerated = kTokenInPrompt - 1;  // mask of the count
static_assert((kTokenAllowed ^ kTokenStops ^ kTokenInPrompt ^ kTokenGenerated) == ~uint32_t{0});
static_assert(sizeof(TokenPenaltyState) == 8);

struct PenaltyEntry {
  int32_t id = 0;
  TokenPenaltyState state;
};

// Sets a slot's token states: all zero, then the entries.
struct PenaltyStateParams {
  int32_t slot = 0;
  int64_t vocab_size = 0;
  // [count] readable by the backend. Biases of one token add up, its bits are or-ed; ids outside
  // [0, vocab_size) are ignored.
  const PenaltyEntry* entries = nullptr;
  int64_t count = 0;
  TokenPenaltyState* penalty_state = nullptr;  // [max_slots, vocab_size]
};

// How a row's logits are changed before temperature and filters, by the slot's token states; in the
// order of engine/request/sampler.h.
struct LogitsProcessorParams {
  bool on = false;            // false: nothing below matters and token states are not read
  bool only_allowed = false;  // tokens without kTokenAllowed are masked
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t stops_from = 0;  // tokens with kTokenStops are masked at positions before
  int32_t mask = -1;        // row of SampleParams::masks: tokens without a bit are masked; -1: none
};

// How to sample one token, plain data in the backend's memory.
struct SampleRow {
  int32_t slot = -1;      // -1: padding, nothing is sampled
  float temperature = 1;  // 0: greedy
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;      // 0: off
  int32_t logprobs = -1;  // how many of the best to report, at most kMaxSampledLogprobs; -1: none
  uint64_t seed = 0;      // Philox key
  uint64_t position = 0;  // of the sampled token in prompt + generated, part of the counter
  LogitsProcessorParams logits_processor = {};
};

inline constexpr int kMaxSampledLogprobs = 20;

enum class SampleStatus : int32_t {
  kSampled,
  kNotFinite,  // a logit is NaN or infinite
  kAllMasked
};

struct SampleRecord {
  int32_t id = 0;  // a valid token even where none was sampled
  SampleStatus status = SampleStatus::kSampled;
  // Valid when logprobs were asked for: of the processed logits, before temperature.
  float logprob = 0;
  int32_t rank = 0;  // 1 is the most likely
  int32_t top_ids[kMaxSampledLogprobs];
  float top_logprobs[kMaxSampledLogprobs];
};

// Words of a mask with a bit for each token: bit id % 32 of word id / 32.
FOX_HOST_DEVICE constexpr int64_t MaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

struct SampleParams {
  MatrixView logits;  // [rows, V] residual dtype; rows with a processor are overwritten
  const SampleRow* rows = nullptr;    // [rows]
  SampleRecord* sampled = nullptr;    // [rows]
  int32_t* sampled_tokens = nullptr;  // [max_slots]
  // [max_slots, V]; null where no row has a processor
  TokenPenaltyState* penalty_state = nullptr;
  // [rows, MaskWords(V)]: only rows with a mask are sampled; null: only those without.
  const uint32_t* masks = nullptr;
};

// A token whose log-probability a row of logits gives.
struct ScoreRow {
  int32_t target = 0;    // in [0, V)
  int32_t logprobs = 0;  // how many of the best to report, at most kMaxSampledLogprobs
};

// Log-probabilities in the model's own distribution: no processor, no temperature. `id` of a record
// is the target.
struct ScoreParams {
  MatrixView logits;               // [rows, V] residual dtype
  const ScoreRow* rows = nullptr;  // [rows]
  SampleRecord* scores = nullptr;  // [rows]
};

}  // namespace fox
