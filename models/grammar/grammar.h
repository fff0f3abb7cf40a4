// Grammar: a constraint on an answer, compiled for a model's vocabulary: a JSON schema, a regular
// expression, a list of choices or a grammar in EBNF. GrammarMatcher follows one answer and says
// which tokens may come next. Constraints come from clients, so their bytes, depth, steps and
// memory are limited. The library behind this header, xgrammar, is not visible through it.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

struct GrammarSource {
  enum class Kind { kJsonSchema, kRegex, kGrammar, kCalls };
  Kind kind = Kind::kJsonSchema;
  std::string text;                           // kCalls: EBNF made by CallGrammar
  std::vector<std::string> json_begins = {};  // kCalls only: see JsonNames
  bool operator==(const GrammarSource&) const = default;
};
// A grammar whose answers are exactly `choices`.
GrammarSource ChoiceGrammar(const std::vector<std::string>& choices);

inline constexpr size_t kMaxGrammarBytes = 64 << 10;  // of one source, or of all tools together

// Immutable, so any thread may use it.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual int64_t bytes() const = 0;        // memory in use, estimated
  virtual int64_t first_steps() const = 0;  // work spent on the mask of the first token
};

// Follows one answer through a grammar. A matcher is used by one thread at a time; matchers of the
// same grammar may run on several threads.
class GrammarMatcher {
 public:
  // Starts with the grammar's mask of the first token. `ends`: tokens that end an answer; the mask
  // allows them wherever the grammar lets the answer end.
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> ends);
  ~GrammarMatcher();

  // Appends a token that mask() allows to the answer. InvalidArgument: the answer is too long or
  // too ambiguous to follow, or no token of the vocabulary continues it.
  absl::Status Accept(int32_t id);
  const absl::Status& status() const { return status_; }  // the first error of Accept, kept

  // Token id may come next if bit id % 32 of word id / 32 is set. [ceil(vocabulary / 32)]
  const std::vector<uint32_t>& mask() const { return mask_; }
  int64_t steps() const { return steps_; }       // work spent by the last Accept
  bool may_end() const { return may_end_; }      // the answer so far is complete
  bool must_end() const { return !may_go_on_; }  // only `ends` may follow

 private:
  struct State;
  absl::Status Follow(int32_t id);
  void AllowEnds();

  const std::shared_ptr<const Grammar> grammar_;
  const std::vector<int32_t> ends_;
  std::unique_ptr<State> state_;  // null before the first token
  std::vector<uint32_t> mask_;
  absl::Status status_;
  int64_t steps_ = 0;
  bool may_end_, may_go_on_;
};

// Compiles grammars for one vocabulary and caches the most recently used ones. Each tenant has its
// own cache, so that no tenant learns from response times which grammars another has sent.
// Thread-safe.
class GrammarCompiler {
 public:
  // Null if the tokenizer's tokens are JSON-escaped text, whose bytes are not the answer's. No
  // grammar allows the unknown token, tokens without bytes, the tokens in `never`, or an added
  // token whose text does not occur in `tags`. `tokenizer` must outlive the compiler.
  static std::unique_ptr<GrammarCompiler> Create(const Tokenizer& tokenizer, int64_t vocab_size,
                                                 const std::vector<int32_t>& never,
                                                 const std::string& tags = "");
  // `tokens` returns the bytes of every token by id; no grammar allows a token of no bytes. Called
  // once, when the first grammar is compiled.
  explicit GrammarCompiler(std::function<std::vector<std::string>()> tokens);
  ~GrammarCompiler();

  // Reserves `bytes` of memory for a grammar until the returned object is destroyed. Its error is
  // returned by Compile or Find. Called under the compiler's lock, so it must not call the
  // compiler.
  using Charge = std::function<absl::StatusOr<std::shared_ptr<void>>(int64_t bytes)>;
  enum class Effort { kWhole, kQuick };
  // Returns the tenant's cached grammar, or compiles it, which may take a second or two, with
  // kQuick a twentieth of that. InvalidArgument: malformed, not supported, or beyond the limits.
  // Aborted: kQuick was not enough.
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GrammarSource& source,
                                                         uint64_t tenant = 0,
                                                         const Charge& charge = nullptr,
                                                         Effort effort = Effort::kWhole);
  // The tenant's cached grammar; null if there is none.
  absl::StatusOr<std::shared_ptr<const Grammar>> Find(const GrammarSource& source,
                                                      uint64_t tenant = 0,
                                                      const Charge& charge = nullptr);
  int64_t kept_bytes() const;

 private:
  struct Vocabulary;
  struct Kept {
    GrammarSource source;
    std::shared_ptr<const Grammar> grammar;
    std::weak_ptr<const Grammar> used;  // the charged pointer that callers share, while it lives

    int64_t bytes() const;
  };
  struct Tenant {
    std::list<Kept> kept;  // most recently used first
    absl::flat_hash_map<std::pair<GrammarSource::Kind, std::string_view>, std::list<Kept>::iterator>
        places;
    int64_t bytes = 0;
  };
  absl::StatusOr<std::shared_ptr<const Grammar>> Make(const GrammarSource& source, Effort effort);
  absl::StatusOr<std::shared_ptr<const Grammar>> Use(const GrammarSource& source, uint64_t tenant,
                                                     std::shared_ptr<const Grammar> made,
                                                     const Charge& charge);
  // REQUIRES of the rest: mutex_ is held.
  Kept* FindKept(const GrammarSource& source, uint64_t tenant);
  // `dropped` receives the grammars that had to make room.
  Kept* AddKept(const GrammarSource& source, uint64_t tenant,
                std::shared_ptr<const Grammar> grammar, std::list<Kept>* dropped);
  void AddBytes(uint64_t id, Tenant* tenant, int64_t bytes);

  const std::function<std::vector<std::string>()> tokens_;
  std::once_flag loaded_;
  std::unique_ptr<Vocabulary> vocabulary_;  // null until the first grammar is compiled
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Tenant> tenants_;
  std::set<std::pair<int64_t, uint64_t>> by_bytes_;  // (cached bytes, id) of each tenant
  int64_t kept_bytes_ = 0;
};

}  // namespace fox
