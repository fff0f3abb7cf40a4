// Grammar: what an answer may be, compiled for a model's vocabulary: a JSON schema, a regular
// expression, a list of choices or a grammar in EBNF. GrammarMatcher follows one answer and says
// which tokens may come next. All come from clients: each has limits, in bytes, depth, steps and
// memory. grammar.cc alone knows the library behind it.
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
  std::string text;                           // kCalls: in EBNF, as CallGrammar makes it
  std::vector<std::string> json_begins = {};  // of kCalls: see JsonNames
  bool operator==(const GrammarSource&) const = default;
};
// A grammar of one of the texts.
GrammarSource ChoiceGrammar(const std::vector<std::string>& choices);

inline constexpr size_t kMaxGrammarBytes = 64 << 10;  // of a source, or of all tools' texts

// Immutable; any thread may use it.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual int64_t bytes() const = 0;        // of memory, about
  virtual int64_t first_steps() const = 0;  // of work that the mask of the first token took
};

// One answer's way through a grammar. Used by one thread at a time; those of one grammar by
// several.
class GrammarMatcher {
 public:
  // Copies the grammar's first mask. `ends`: tokens that may come where the answer may end, and
  // nothing after them.
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> ends);
  ~GrammarMatcher();

  // The answer goes on with a token that mask() allows. InvalidArgument: it is too long or too
  // ambiguous to follow, or no token of the vocabulary continues it.
  absl::Status Accept(int32_t id);
  const absl::Status& status() const { return status_; }  // the first error; it stays

  // Token id may come next if bit id % 32 of word id / 32 is set. [ceil(vocabulary / 32)]
  const std::vector<uint32_t>& mask() const { return mask_; }
  int64_t steps() const { return steps_; }       // of work that the last Accept took
  bool may_end() const { return may_end_; }      // what there is, is whole
  bool must_end() const { return !may_go_on_; }  // nothing can follow it

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

// Compiles grammars for one vocabulary and keeps those used last, each tenant's apart: no tenant
// learns by the time that an answer takes what another one has sent. All methods may be called from
// any thread.
class GrammarCompiler {
 public:
  // Null: the tokenizer's text is escaped. Added tokens but those of `tags`, those without bytes
  // and those that are `never` part of a text are in no answer. The tokenizer must outlive the
  // compiler.
  static std::unique_ptr<GrammarCompiler> Create(const Tokenizer& tokenizer, int64_t vocab_size,
                                                 const std::vector<int32_t>& never,
                                                 const std::string& tags = "");
  // `tokens`: the bytes of each, called once; empty: in no answer.
  explicit GrammarCompiler(std::function<std::vector<std::string>()> tokens);
  ~GrammarCompiler();

  // What is paid for a grammar's bytes, as long as it is used; an error is that of the method that
  // asks for it. May be called with a lock held: it must not call back.
  using Charge = std::function<absl::StatusOr<std::shared_ptr<void>>(int64_t bytes)>;
  enum class Effort { kWhole, kQuick };
  // Finds or makes a grammar. May take a second, kQuick a twentieth of it. InvalidArgument:
  // malformed, not supported, or beyond the limits; Aborted: it takes more than kQuick.
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GrammarSource& source,
                                                         uint64_t tenant = 0,
                                                         const Charge& charge = nullptr,
                                                         Effort effort = Effort::kWhole);
  // What is kept of it for the tenant; null: nothing.
  absl::StatusOr<std::shared_ptr<const Grammar>> Find(const GrammarSource& source,
                                                      uint64_t tenant = 0,
                                                      const Charge& charge = nullptr);
  int64_t kept_bytes() const;

 private:
  struct Vocabulary;
  struct Kept {
    GrammarSource source;
    std::shared_ptr<const Grammar> grammar;
    std::weak_ptr<const Grammar> used;  // as long as it is, it is paid for

    int64_t bytes() const;
  };
  struct Tenant {
    std::list<Kept> kept;  // the one used last first
    absl::flat_hash_map<std::pair<GrammarSource::Kind, std::string_view>, std::list<Kept>::iterator>
        places;
    int64_t bytes = 0;
  };
  absl::StatusOr<std::shared_ptr<const Grammar>> Make(const GrammarSource& source, Effort effort);
  absl::StatusOr<std::shared_ptr<const Grammar>> Use(const GrammarSource& source, uint64_t tenant,
                                                     std::shared_ptr<const Grammar> made,
                                                     const Charge& charge);
  // With the lock.
  Kept* Look(const GrammarSource& source, uint64_t tenant);
  Kept* Keep(const GrammarSource& source, uint64_t tenant, std::shared_ptr<const Grammar> grammar,
             std::list<Kept>* dropped);
  void Count(uint64_t id, Tenant* tenant, int64_t bytes);

  const std::function<std::vector<std::string>()> tokens_;
  std::once_flag loaded_;
  std::unique_ptr<Vocabulary> vocabulary_;  // once a grammar was asked for
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Tenant> tenants_;
  std::set<std::pair<int64_t, uint64_t>> by_bytes_;  // tenants, by what is kept for each
  int64_t kept_bytes_ = 0;
};

}  // namespace fox
