// Reference: sums of keys, head by head, kept as tokens come. Read reference_model.h first.
#include "tests/engine/sim/reference_model.h"

#include <algorithm>
#include <utility>

namespace fox::sim {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// True if the token comes alone: a generated token, or a prompt of one token.
bool IsDecoded(int64_t position, int64_t prompt) { return position >= prompt || prompt == 1; }

}  // namespace

Reference::Reference(Request request, const EngineOptions& engine, const FakeOptions& executor)
    : request_(std::move(request)),
      engine_(engine),
      executor_(executor),
      log_tolerance_(engine.acp == AcpMode::kOff
                         ? kNoMass
                         : request_.log_tolerance.value_or(engine.log_tolerance)),
      limit_(std::min<int64_t>(
          request_.stop.max_tokens,
          executor.limits.max_model_len - static_cast<int64_t>(request_.prompt.size()))),
      keys_(executor, request_.id, request_.cache_salt, log_tolerance_),
      heads_(static_cast<size_t>(executor.limits.lists_per_slot)) {}

// Where chunks matter, the pages of the smallest chunk are taken before any page is evicted.
int64_t Reference::PageRowsTaken() const {
  const auto [unit, fixed] = executor_.limits.chunks;
  const auto prompt = static_cast<int64_t>(request_.prompt.size());
  if (!fixed || IsDecoded(length_, prompt)) return length_ % kPageTokens == 0 ? 1 : 0;
  if (length_ % unit != 0 || length_ == prompt - 1) return 0;
  const int64_t end = length_ + unit + 1 >= prompt ? prompt : length_ + unit;
  return PagesFor(end) - PagesFor(length_);
}

void Reference::Append(int32_t token) {
  const uint64_t hash =
      keys_.Next(length_, token, IsDecoded(length_, static_cast<int64_t>(request_.prompt.size())));
  int64_t head = 0;
  for (Head& h : heads_) h.current += KeyOf(hash, head++);
  if (const int64_t rows = PageRowsTaken(); rows > 0) {
    int64_t held = 0;
    for (const Head& h : heads_) held += static_cast<int64_t>(h.pages.size()) + rows - h.first;
    most_pages_ = std::max(most_pages_, held);
  }
  ++length_;
}

uint64_t Reference::Fold() const {
  uint64_t fold = 0;
  int64_t head = 0;
  for (const Head& h : heads_) {
    fold += h.live + PageWeight(head++, static_cast<int64_t>(h.pages.size())) * h.current;
  }
  return fold;
}

void Reference::EndPage() {
  int64_t head = 0;
  for (Head& h : heads_) {
    h.pages.push_back(PageWeight(head, static_cast<int64_t>(h.pages.size())) *
                      std::exchange(h.current, 0));
    h.live += h.pages.back();
    const int64_t first = FirstKept(executor_, keys_.state(), head, length_, log_tolerance_);
    const double h_bound = LogDenominatorBound(keys_.state(), head, length_, first, log_tolerance_);
    for (; h.first < first; ++h.first) {
      h.live -= h.pages[static_cast<size_t>(h.first)];
      max_log_evicted_mass_ =
          std::max(max_log_evicted_mass_, static_cast<double>(h.first) + h_bound);
    }
    ++head;
  }
}

Reference::Kind Reference::Next(Sampler& sampler, SampledToken* token) {
  if (over_) return *over_;
  const auto prompt = static_cast<int64_t>(request_.prompt.size());
  if (length_ == 0) {
    row_.resize(static_cast<size_t>(executor_.limits.vocab_size));
    if (request_.sampling.repetition_penalty != 1.0f) counts_.AddPrompt(request_.prompt);
    stops_ = request_.stop.stop_token_ids;
    if (!request_.stop.ignore_eos) {
      stops_.insert(stops_.end(), engine_.eos_token_ids.begin(), engine_.eos_token_ids.end());
    }
  }
  if (generated_ > 0 && generated_ == limit_) over_ = Kind::kEnd;
  while (!over_) {
    Append(length_ < prompt ? request_.prompt[static_cast<size_t>(length_)] : last_);
    const bool inside = length_ < prompt;
    const bool wanted = inside ? request_.sampling.prompt_logprobs >= 0 : limit_ > 0;
    if (wanted) FillLogits(Fold(), row_.data(), executor_.limits.vocab_size);
    if (length_ % kPageTokens == 0) EndPage();
    if (!wanted) {
      if (!inside) over_ = Kind::kEnd;
      continue;
    }
    if (!executor_.nan_requests.empty() && length_ > executor_.nan_position &&
        executor_.nan_requests.count(request_.id) > 0) {
      over_ = Kind::kFailure;
      continue;
    }
    if (!inside) return Choose(sampler, token);
    *token = *sampler.ScorePrompt(row_.data(), request_.sampling,
                                  request_.prompt[static_cast<size_t>(length_)]);
    return Kind::kScore;
  }
  return *over_;
}

Reference::Kind Reference::Choose(Sampler& sampler, SampledToken* token) {
  const SamplingParams& sampling = request_.sampling;
  const bool counts = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
                      sampling.frequency_penalty != 0;
  const bool early = generated_ < request_.stop.min_tokens;
  *token = *sampler.Sample(row_.data(), request_.sampling, counts_,
                           early ? stops_ : std::vector<int32_t>(), static_cast<uint64_t>(length_));
  if (Contains(stops_, token->id)) {
    reason_ = FinishReason::kStop;
    stop_token_id_ = token->id;
    eos_ = !request_.stop.ignore_eos && Contains(engine_.eos_token_ids, token->id);
    over_ = Kind::kEnd;
    return *over_;
  }
  ++generated_;
  last_ = token->id;
  if (counts) counts_.AddGenerated(last_);
  return Kind::kToken;
}

void Reference::Drain(Sampler& sampler) {
  SampledToken ignored;
  while (!over_) Next(sampler, &ignored);
}

Expected RunReference(const Request& request, const EngineOptions& engine,
                      const FakeOptions& executor) {
  Expected expected;
  Reference reference(request, engine, executor);
  Sampler sampler(executor.limits.vocab_size);
  for (;;) {
    SampledToken token;
    const Reference::Kind kind = reference.Next(sampler, &token);
    if (kind == Reference::Kind::kToken) {
      expected.tokens.push_back(token.id);
    } else if (kind == Reference::Kind::kScore) {
      expected.prompt_logprobs.push_back(std::move(token));
    } else {
      expected.reason = reference.reason();
      return expected;
    }
  }
}

std::vector<int32_t> FirstPages(const FakeOptions& options, const Request& request,
                                const std::vector<int32_t>& generated, int64_t count,
                                double log_tolerance) {
  KeyChain keys(options, request.id, request.cache_salt, log_tolerance);
  std::vector<int32_t> first(static_cast<size_t>(options.limits.lists_per_slot), 0);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  for (int64_t i = 0; i < count; ++i) {
    keys.Next(i,
              i < prompt ? request.prompt[static_cast<size_t>(i)]
                         : generated.at(static_cast<size_t>(i - prompt)),
              IsDecoded(i, prompt));
    if ((i + 1) % kPageTokens != 0) continue;
    int64_t head = 0;
    for (int32_t& kept : first) {
      const int64_t at = FirstKept(options, keys.state(), head++, i + 1, log_tolerance);
      kept = std::max(kept, static_cast<int32_t>(at));
    }
  }
  return first;
}

}  // namespace fox::sim
