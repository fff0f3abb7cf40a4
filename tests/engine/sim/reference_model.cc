// ReferenceModel: all keys of all heads in plain vectors. Read reference_model.h first.
#include "tests/engine/sim/reference_model.h"

#include <algorithm>

#include "engine/sampler.h"

namespace fox::sim {
namespace {

// One request's keys: every head remembers all of them and where its live ones begin.
class Memory {
 public:
  Memory(uint64_t request, const FakeOptions& options)
      : request_(request),
        options_(options),
        keys_(static_cast<size_t>(options.limits.lists_per_slot)),
        begin_(keys_.size(), 0) {}

  void Append(int32_t token) {
    const int64_t position = length_++;
    for (size_t head = 0; head < keys_.size(); ++head) {
      keys_[head].push_back(KeyHash(request_, static_cast<int64_t>(head), position, token));
    }
    int64_t held = 0;
    for (const int64_t begin : begin_) held += (length_ - begin + 63) / 64;
    most_pages_ = std::max(most_pages_, held);
  }

  uint64_t FoldAll() const {
    uint64_t state = 0;
    for (size_t head = 0; head < keys_.size(); ++head) {
      for (int64_t p = begin_[head]; p < length_; ++p) {
        state = Fold(state, keys_[head][static_cast<size_t>(p)]);
      }
    }
    return state;
  }

  void Forget() {
    if (length_ % 64 != 0) return;
    for (size_t head = 0; head < keys_.size(); ++head) {
      const int flow_window = WindowPages(options_, request_, static_cast<int64_t>(head), length_);
      const int64_t begin = length_ - 64 * static_cast<int64_t>(flow_window);
      begin_[head] = std::max(begin_[head], begin);
    }
  }

  int64_t most_pages() const { return most_pages_; }

 private:
  uint64_t request_;
  const FakeOptions& options_;
  std::vector<std::vector<uint64_t>> keys_;
  std::vector<int64_t> begin_;
  int64_t length_ = 0;
  int64_t most_pages_ = 0;
};

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Expected RunReference(const Request& request, const EngineOptions& engine,
                      const FakeOptions& executor) {
  Expected expected;
  Memory memory(request.id, executor);
  const int32_t vocab = executor.limits.vocab_size;
  Sampler sampler(vocab);
  TokenCounts counts;
  if (request.sampling.repetition_penalty != 1.0f) counts.AddPrompt(request.prompt);
  std::vector<int32_t> stops = request.stop.stop_token_ids;
  if (!request.stop.ignore_eos) {
    stops.insert(stops.end(), engine.eos_token_ids.begin(), engine.eos_token_ids.end());
  }
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t limit =
      std::min<int64_t>(request.stop.max_tokens, executor.limits.max_model_len - prompt);
  std::vector<int32_t> tokens = request.prompt;
  std::vector<float> row(static_cast<size_t>(vocab));
  for (int64_t position = 0; position < static_cast<int64_t>(tokens.size()); ++position) {
    memory.Append(tokens[static_cast<size_t>(position)]);
    if (memory.most_pages() > executor.limits.num_pages) expected.exhausts_pool = true;
    FillLogits(memory.FoldAll(), row.data(), vocab);
    memory.Forget();
    const bool inside = position < prompt - 1;
    if (inside ? request.sampling.prompt_logprobs < 0 : limit == 0) continue;
    if (executor.nan_requests.count(request.id) > 0 && position >= executor.nan_position) {
      expected.numerical_failure = true;
      return expected;
    }
    if (inside) {
      const int32_t next = tokens[static_cast<size_t>(position) + 1];
      expected.prompt_logprobs.push_back(*sampler.ScorePrompt(row.data(), request.sampling, next));
      continue;
    }
    const int64_t generated = position + 1 - prompt;
    const bool early = generated < request.stop.min_tokens;
    const SampledToken sampled = *sampler.Sample(row.data(), request.sampling, counts,
                                                 early ? stops : std::vector<int32_t>(),
                                                 static_cast<uint64_t>(position + 1));
    const int32_t token = sampled.id;
    if (Contains(stops, token)) {
      expected.reason = FinishReason::kStop;
      expected.stop_token_id = token;
      expected.eos = !request.stop.ignore_eos && Contains(engine.eos_token_ids, token);
      return expected;
    }
    expected.tokens.push_back(token);
    expected.sampled.push_back(sampled);
    if (generated + 1 == limit) return expected;
    tokens.push_back(token);
    counts.AddGenerated(token);
  }
  return expected;
}

}  // namespace fox::sim
