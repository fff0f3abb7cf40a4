// Sampler: sampling on the host. Scans are plain loops over fixed blocks, which compilers
// vectorise. Read sampler.h first.
#include "engine/request/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/core/sampling_arithmetic.h"
#include "kernels/cpu/score.h"

namespace fox {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// Bits of a mask's word. A table, because SSE shifts all lanes by the same count.
constexpr size_t kWordBits = 32;
constexpr std::array<uint32_t, kWordBits> kBits = [] {
  std::array<uint32_t, kWordBits> bits{};
  for (size_t i = 0; i < kWordBits; ++i) bits[i] = uint32_t{1} << i;
  return bits;
}();

// Noise that the race adds to the logits of a group of ids.
void GroupNoise(uint64_t seed, uint64_t position, int32_t group, float scale, float* noise) {
  uint32_t words[kRaceGroup];
  for (int32_t lane = 0; lane < kRaceLanes; ++lane) {
    const PhiloxCounter block = RaceWords(seed, position, group * kRaceLanes + lane);
    words[lane] = block.x0;
    words[kRaceLanes + lane] = block.x1;
    words[2 * kRaceLanes + lane] = block.x2;
    words[3 * kRaceLanes + lane] = block.x3;
  }
  for (int32_t i = 0; i < kRaceGroup; ++i) noise[i] = RaceNoise(words[i], scale);
}

// The race's winner among the tokens that the filters keep.
int32_t Race(const float* row, int32_t size, const Sampler::Kept& kept,
             const SamplingParams& params, uint64_t position) {
  const float scale = RaceScale(params.temperature);
  const int id_bits = IdBits(size);
  uint64_t best = 0;
  double best_score = RaceScore(kMasked, 0.0f);
  for (int32_t begin = 0; begin < size; begin += kRaceGroup) {
    const int32_t count = std::min(size - begin, kRaceGroup);
    float logits[kRaceGroup];  // kMasked where the filters drop the token
    int32_t any = 0;
    for (int32_t i = 0; i < count; ++i) {
      const float x = row[begin + i];
      const bool is_kept = (x > kept.least) | ((x == kept.least) & (begin + i <= kept.last_id));
      logits[i] = x;
      if (!is_kept) logits[i] = kMasked;
      any |= is_kept ? 1 : 0;
    }
    if (any == 0) continue;
    float noise[kRaceGroup];
    GroupNoise(params.seed, position, begin / kRaceGroup, scale, noise);
    any = 0;
    for (int32_t i = 0; i < count; ++i) any |= RaceScore(logits[i], noise[i]) > best_score ? 1 : 0;
    if (any == 0) continue;  // ids ascend, so a later equal score cannot win
    for (int32_t i = 0; i < count; ++i) {
      const double score = RaceScore(logits[i], noise[i]);
      const uint64_t key = RaceKey(score, begin + i, id_bits);
      if (key <= best) continue;
      best = key;
      best_score = score;
    }
  }
  return RaceId(best, id_bits);
}

bool WantsLogprobs(const SamplingParams& params) {
  return params.logprobs >= 0 || !params.logprob_token_ids.empty();
}

bool ChangesLogits(const SamplingParams& params) {
  return !params.logit_bias.empty() || !params.allowed_token_ids.empty() ||
         params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

absl::Status NumericalFailure() { return absl::InternalError("numerical failure"); }

}  // namespace

void TokenCounts::AddPrompt(const std::vector<int32_t>& prompt) {
  FOX_CHECK(entries_.empty());
  std::vector<int32_t> ids = prompt;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  entries_.reserve(ids.size());
  for (const int32_t id : ids) entries_.push_back({id, 0});
}

void TokenCounts::AddGenerated(int32_t id) {
  auto entry = std::lower_bound(entries_.begin(), entries_.end(), id,
                                [](const Entry& e, int32_t value) { return e.id < value; });
  if (entry == entries_.end() || entry->id != id) entry = entries_.insert(entry, {id, 0});
  ++entry->generated;
}

Sampler::Sampler(int32_t vocab_size) : vocab_size_(vocab_size) {
  FOX_CHECK(vocab_size > 0);
  row_.resize((static_cast<size_t>(vocab_size) + kWordBits - 1) / kWordBits * kWordBits);
  weight_.resize(row_.size());
  candidates_.reserve(static_cast<size_t>(vocab_size));
}

absl::StatusOr<SampledToken> Sampler::Sample(const float* logits, const SamplingParams& params,
                                             const TokenCounts& counts,
                                             const std::vector<int32_t>& masked, uint64_t position,
                                             const uint32_t* may_follow) {
  RowScan scan = ScanRow(logits, vocab_size_);
  if (!scan.finite) return NumericalFailure();
  const float* row = logits;
  if (ChangesLogits(params) || !masked.empty() || may_follow != nullptr) {
    std::copy(logits, logits + vocab_size_, row_.begin());
    ProcessLogits(params, counts, masked, may_follow);
    row = row_.data();
    scan = ScanRow(row, vocab_size_);
    if (row[scan.best] == kMasked) return absl::InternalError("no token may be sampled");
  }
  const float largest = row[scan.best];
  SampledToken token;
  token.id = params.temperature > 0.0f
                 ? Race(row, vocab_size_, Filter(row, params, largest), params, position)
                 : scan.best;
  FOX_CHECK(token.id >= 0 && token.id < vocab_size_);
  if (WantsLogprobs(params)) {
    FillLogprobs(row, largest, params.logprobs, params.logprob_token_ids, &token);
  }
  return token;
}

absl::StatusOr<SampledToken> Sampler::ScorePrompt(const float* logits, const SamplingParams& params,
                                                  int32_t id) {
  FOX_CHECK(id >= 0 && id < vocab_size_);
  const RowScan scan = ScanRow(logits, vocab_size_);
  if (!scan.finite) return NumericalFailure();
  SampledToken token;
  token.id = id;
  FillLogprobs(logits, logits[scan.best], params.prompt_logprobs, params.logprob_token_ids, &token);
  return token;
}

void Sampler::ProcessLogits(const SamplingParams& params, const TokenCounts& counts,
                            const std::vector<int32_t>& masked, const uint32_t* may_follow) {
  const auto at = [this](int32_t id) -> float& { return row_[static_cast<size_t>(id)]; };
  for (const auto& [id, bias] : params.logit_bias) {
    at(id) = std::clamp(at(id) + bias, -kLargest, kLargest);
  }
  if (!params.allowed_token_ids.empty()) {
    std::fill(weight_.begin(), weight_.end(), kMasked);
    for (const int32_t id : params.allowed_token_ids) weight_[static_cast<size_t>(id)] = at(id);
    row_.swap(weight_);
  }
  for (const int32_t id : masked) {
    if (id >= 0 && id < vocab_size_) at(id) = kMasked;
  }
  for (size_t begin = 0; begin < row_.size() && may_follow != nullptr; begin += kWordBits) {
    const uint32_t word = may_follow[begin / kWordBits];
    float* x = row_.data() + begin;
    float never = kMasked;  // to clang-tidy 14 a constant would be narrowed
    for (size_t i = 0; i < kWordBits; ++i) x[i] = (word & kBits[i]) != 0 ? x[i] : never;
  }
  for (const TokenCounts::Entry& entry : counts.entries()) {
    float& x = at(entry.id);
    if (x == kMasked) continue;
    x = x > 0.0f ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (entry.generated > 0) {
      x -= params.frequency_penalty * static_cast<float>(entry.generated);
      x -= params.presence_penalty;
    }
    x = std::clamp(x, -kLargest, kLargest);  // an extreme penalty must not look like a mask
  }
}

Sampler::Kept Sampler::Filter(const float* row, const SamplingParams& params, float largest) {
  Kept kept;
  if (params.min_p > 0.0f) kept.least = MinPFloor(params.min_p, params.temperature, largest);
  const size_t top_k =
      params.top_k > 0 ? static_cast<size_t>(params.top_k) : candidates_.max_size();
  if (top_k >= static_cast<size_t>(vocab_size_) && params.top_p >= 1.0f) return kept;
  candidates_.clear();
  for (int32_t id = 0; id < vocab_size_; ++id) {
    if (row[id] >= kept.least) candidates_.push_back(CandidateKey(row[id], id));
  }
  if (top_k < candidates_.size()) {
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(top_k - 1);
    std::nth_element(candidates_.begin(), last, candidates_.end(), std::greater<>());
    candidates_.resize(top_k);
    kept.last_id = CandidateId(candidates_.back());
  }
  if (params.top_p < 1.0f) kept.last_id = TopPEnd(row, params, largest);
  if (kept.last_id < vocab_size_) kept.least = row[kept.last_id];
  return kept;
}

// The last candidate, in order of falling likelihood, that is needed to reach the top_p mass.
int32_t Sampler::TopPEnd(const float* row, const SamplingParams& params, float largest) {
  const double inverse_temperature = InverseTemperature(params.temperature);
  const float one = FixedPointOne(vocab_size_);
  const auto weight = [&](uint64_t candidate) {
    return FixedPointWeight(Weight(row[CandidateId(candidate)], largest, inverse_temperature), one);
  };
  uint64_t total = 0;
  for (const uint64_t candidate : candidates_) total += weight(candidate);
  const uint64_t target = TopPSum(params.top_p, total);
  uint64_t sum = 0;
  for (size_t begin = 0, end = 64;; end *= 4) {
    end = std::min(end, candidates_.size());
    const auto from = candidates_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto to = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
    if (to != candidates_.end()) std::nth_element(from, to, candidates_.end(), std::greater<>());
    std::sort(from, to, std::greater<>());
    for (; begin < end; ++begin) {
      sum += weight(candidates_[begin]);
      if (sum >= target) return CandidateId(candidates_[begin]);
    }
  }
}

void Sampler::FillLogprobs(const float* row, float largest, int32_t best,
                           const std::vector<int32_t>& extra, SampledToken* token) const {
  const double log_sum = LogSumExp(row, vocab_size_, largest);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(row[id]) - log_sum);
  };
  token->logprob = logprob(token->id);
  token->rank = RankOf(row, vocab_size_, token->id);
  int32_t rank = 0;
  for (const uint64_t key : BestCandidates(row, vocab_size_, std::clamp(best, 0, vocab_size_))) {
    token->top.push_back({CandidateId(key), logprob(CandidateId(key)), ++rank});
  }
  for (const int32_t id : extra) {
    token->top.push_back({id, logprob(id), RankOf(row, vocab_size_, id)});
  }
}

bool NeedsCounts(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

absl::StatusOr<SampledToken> TokenOf(const SampleRecord& record, int32_t logprobs,
                                     int32_t vocab_size) {
  if (record.status == SampleStatus::kNotFinite) return NumericalFailure();
  if (record.status == SampleStatus::kAllMasked) {
    return absl::InternalError("no token may be sampled");
  }
  SampledToken token;
  token.id = record.id;
  if (logprobs < 0) return token;
  token.logprob = record.logprob;
  token.rank = record.rank;
  for (int32_t i = 0; i < std::min(logprobs, vocab_size); ++i) {
    token.top.push_back({record.top_ids[i], record.top_logprobs[i], i + 1});
  }
  return token;
}

bool ExecutorScores(const SamplingParams& sampling) {
  return sampling.logprob_token_ids.empty() && sampling.prompt_logprobs <= kMaxSampledLogprobs;
}

// The host samples, at half the pace, for requests with more alternatives than a SampleRecord holds
// or with ids of their own choice.
std::optional<SampleRow> SampleRowOf(const Request& request, const StopCondition& stop,
                                     int64_t position, int64_t produced) {
  const SamplingParams& sampling = request.sampling;
  if (!sampling.logprob_token_ids.empty() || sampling.logprobs > kMaxSampledLogprobs) return {};
  SampleRow sample;
  sample.temperature = sampling.temperature;
  sample.top_p = sampling.top_p;
  sample.min_p = sampling.min_p;
  sample.top_k = sampling.top_k;
  sample.logprobs = sampling.logprobs;
  sample.seed = sampling.seed;
  sample.position = static_cast<uint64_t>(position);
  const bool masks_stops = !stop.MaskedAt(produced).empty();
  LogitsProcessorParams& logits_processor = sample.logits_processor;
  logits_processor.on = NeedsCounts(sampling) || !sampling.logit_bias.empty() ||
                        !sampling.allowed_token_ids.empty() || masks_stops ||
                        request.grammar != nullptr;
  if (request.grammar != nullptr) logits_processor.mask = 0;
  logits_processor.only_allowed = !sampling.allowed_token_ids.empty();
  logits_processor.repetition_penalty = sampling.repetition_penalty;
  logits_processor.presence_penalty = sampling.presence_penalty;
  logits_processor.frequency_penalty = sampling.frequency_penalty;
  if (masks_stops) {
    logits_processor.stops_from =
        static_cast<uint64_t>(position - produced + request.stop.min_tokens);
  }
  return sample;
}

std::vector<PenaltyEntry> PenaltyEntriesOf(const Request& request, const StopCondition& stop,
                                           const TokenCounts& counts, int64_t produced) {
  std::vector<PenaltyEntry> entries;
  const auto add = [&](int32_t id, float bias, uint32_t bits) {
    entries.push_back({id, {bias, bits}});
  };
  for (const auto& [id, bias] : request.sampling.logit_bias) add(id, bias, 0);
  for (const int32_t id : request.sampling.allowed_token_ids) add(id, 0, kTokenAllowed);
  for (const int32_t id : stop.MaskedAt(produced)) add(id, 0, kTokenStops);
  for (const TokenCounts::Entry& entry : counts.entries()) {
    // Generated tokens need no flag: every penalty of prompt tokens applies to them, too.
    add(entry.id, 0, entry.generated > 0 ? static_cast<uint32_t>(entry.generated) : kTokenInPrompt);
  }
  return entries;
}

}  // namespace fox
