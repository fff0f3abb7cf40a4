// Reference: the expected outputs of a request, computed alone, token by token, without scheduler,
// slots, pages or chunks, and only as far as needed. Independent of everything under test but the
// pure functions of fake_keys.h and the sampler. Read simulation.h next.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "engine/request/sampler.h"
#include "tests/engine/sim/fake_keys.h"

namespace fox::sim {

class Reference {
 public:
  enum class Kind : uint8_t {
    kScore,  // a prompt log-probability
    kToken,
    kEnd,      // reason() and so on are valid
    kFailure,  // a logit is not finite
  };

  // `engine` and `executor` must outlive this. Later changes of fields for single requests have no
  // effect.
  Reference(Request request, const EngineOptions& engine, const FakeOptions& executor);

  const Request& request() const { return request_; }
  double log_tolerance() const { return log_tolerance_; }
  // The kind of the next output, and its value if it is a score or a token.
  Kind Next(Sampler& sampler, SampledToken* token);
  // Computes the rest and discards it.
  void Drain(Sampler& sampler);

  FinishReason reason() const { return reason_; }
  std::optional<int32_t> stop_token_id() const { return stop_token_id_; }
  bool eos() const { return eos_; }
  // The largest over all evictions so far.
  double max_log_evicted_mass() const { return max_log_evicted_mass_; }
  // True if the tokens computed so far need more pages than the pool has.
  bool exhausts_pool() const { return most_pages_ > executor_.limits.num_pages; }

 private:
  struct Head {
    uint64_t live = 0;            // weighted keys of the pages that are full and kept
    uint64_t current = 0;         // keys of the page that fills
    std::vector<uint64_t> pages;  // weighted keys by full page
    int64_t first = 0;            // kept
  };

  int64_t PageRowsTaken() const;  // by a plan that begins with the next token
  void Append(int32_t token);
  void EndPage();
  uint64_t Fold() const;
  Kind Choose(Sampler& sampler, SampledToken* token);

  Request request_;
  const EngineOptions& engine_;
  const FakeOptions& executor_;
  double log_tolerance_;
  int64_t limit_;
  KeyChain keys_;
  std::vector<Head> heads_;
  TokenCounts counts_;
  std::vector<int32_t> stops_;
  std::vector<float> row_;
  int64_t length_ = 0;  // tokens appended
  int64_t generated_ = 0;
  int32_t last_ = 0;  // generated, to be appended
  int64_t most_pages_ = 0;
  double max_log_evicted_mass_ = kNoMass;
  std::optional<Kind> over_;
  FinishReason reason_ = FinishReason::kLength;
  std::optional<int32_t> stop_token_id_;
  bool eos_ = false;
};

// All outputs of a reference.
struct Expected {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kLength;
  std::vector<SampledToken> prompt_logprobs;
};
Expected RunReference(const Request& request, const EngineOptions& engine,
                      const FakeOptions& executor);

// The first page that each head keeps of the first `count` tokens of a request: its prompt and its
// generated tokens.
std::vector<int32_t> FirstPages(const FakeOptions& options, const Request& request,
                                const std::vector<int32_t>& generated, int64_t count,
                                double log_tolerance);

}  // namespace fox::sim
