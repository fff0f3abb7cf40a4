// Grammars over xgrammar: parsing and compiling a source, following an answer, and the caches of
// the tenants. See grammar.h.
#include "models/grammar/grammar.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiled_grammar_impl.h"
#include "grammar_impl.h"
#include "kernels/core/check.h"
#include "models/grammar/ebnf_rules.h"
#include "models/grammar/equal_rules.h"
#include "models/grammar/json_names.h"
#include "models/grammar/json_schema.h"
#include "models/grammar/regex.h"
#include "models/grammar/work_meter.h"
#include "xgrammar/xgrammar.h"

namespace xgrammar {
void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}
// A warning tells that a part of the grammar is ignored: an error, too.
void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  throw std::runtime_error(message);
}
}  // namespace xgrammar

namespace fox {
namespace {

constexpr int64_t kCompileSteps = 100'000'000;  // one or two seconds
constexpr int64_t kQuickSteps = 5'000'000;
constexpr int64_t kMaxBytes = 16 << 20;      // of a compiled grammar
constexpr int64_t kMaxKeptBytes = 64 << 20;  // of all tenants' caches together
constexpr int kMaxRules = 1 << 14;           // the library numbers them in 16 bits
// A matcher's allowance for masks: kMaskSteps at most, of which each token gives back kTokenSteps.
// Parsing has kParseSteps for the whole answer, because the parse stays in memory, at about 40
// bytes a step.
constexpr int64_t kMaskSteps = 500'000, kTokenSteps = 150'000, kParseSteps = 4'000'000;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// A message of the library as one line of bounded length.
std::string OneLine(const std::string& message) { return absl::CHexEscape(message.substr(0, 200)); }

absl::Status CheckText(const GrammarSource& source) {
  // The schemas of kCalls were measured before they became EBNF, which is longer; Make limits its
  // rules.
  if (source.text.size() > kMaxGrammarBytes && source.kind != GrammarSource::Kind::kCalls) {
    return Invalid(absl::StrCat("at most ", kMaxGrammarBytes, " bytes"));
  }
  if (source.text.find('\0') != std::string::npos) return Invalid("contains a NUL character");
  return absl::OkStatus();
}

// The error of the part at `place` of a grammar; empty: of the whole.
absl::Status InvalidAt(const std::string& place, const std::string& problem) {
  return Invalid(absl::StrCat(place, place.empty() ? "" : ": ", problem));
}

std::map<std::string, int64_t> CountRules(const xgrammar::Grammar& grammar) {
  std::map<std::string, int64_t> counts;
  for (int32_t rule = 0; rule < grammar->NumRules(); ++rule) ++counts[grammar->GetRule(rule).name];
  return counts;
}

// The bytes of the masks of each rule.
std::map<std::string, int64_t> MaskBytes(const xgrammar::CompiledGrammar& compiled) {
  std::map<std::string, int64_t> bytes;
  for (const auto& [state, mask] : compiled->adaptive_token_mask_cache) {
    bytes[compiled->grammar->GetRule(state.rule_id).name] += static_cast<int64_t>(MemorySize(mask));
  }
  return bytes;
}

// `text` receives the EBNF of a JSON schema or of calls, in which HeaviestPlace finds a rule's
// origin.
xgrammar::Grammar Parse(const GrammarSource& source, std::string* text) {
  switch (source.kind) {
    case GrammarSource::Kind::kRegex:
      return xgrammar::Grammar::FromEBNF(
          absl::StrCat("regex ::= ", RegexInEbnf(source.text, RegexPlace::kAnswer).body), "regex");
    case GrammarSource::Kind::kGrammar:
      return xgrammar::Grammar::FromEBNF(source.text);
    case GrammarSource::Kind::kCalls:
      *text = source.text;
      return xgrammar::Grammar::FromEBNF(*text);
    case GrammarSource::Kind::kJsonSchema:
      break;
  }
  EbnfRules rules;
  const absl::StatusOr<SchemaRules> schema = AddSchemaRules(source.text, /*relax=*/false, &rules);
  if (absl::EndsWith(schema.status().message(), WorkSpent().what())) throw WorkSpent();
  if (!schema.ok()) throw std::runtime_error(std::string(schema.status().message()));
  *text = absl::StrCat("root ::= ", schema->root, "\n", rules.text());
  return xgrammar::Grammar::FromEBNF(*text);
}

}  // namespace

GrammarSource ChoiceGrammar(const std::vector<std::string>& choices) {
  GrammarSource source{GrammarSource::Kind::kGrammar, "root ::= "};
  for (const std::string& choice : choices) {
    if (&choice != &choices.front()) source.text += " | ";
    source.text += EbnfText(choice);
  }
  return source;
}

// --- GrammarMatcher ---

namespace {

// A matcher without tokens that end an answer: they are the engine's (see AllowEnds).
xgrammar::GrammarMatcher MatcherOf(const xgrammar::CompiledGrammar& compiled) {
  return {compiled, std::nullopt, /*terminate_without_stop_token=*/true};
}

// Fills the mask of the next token. True if any token may come next.
bool FillMask(xgrammar::GrammarMatcher* matcher, const JsonNames* names,
              std::vector<uint32_t>* mask) {
  auto size = static_cast<int64_t>(mask->size());
  DLTensor tensor{mask->data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &size, nullptr, 0};
  matcher->FillNextTokenBitmask(&tensor);
  if (names != nullptr) names->Clear(mask);
  return std::any_of(mask->begin(), mask->end(), [](uint32_t word) { return word != 0; });
}

absl::Status NothingContinues() {
  return Invalid("no token of the vocabulary continues the answer");
}

// A compiled grammar, with the mask of the first token, which is the same for all answers.
class CompiledGrammar final : public Grammar {
 public:
  // Throws WorkSpent and the exceptions of the library.
  CompiledGrammar(xgrammar::CompiledGrammar grammar, const GrammarSource& source,
                  std::shared_ptr<const NameTokens> name_tokens)
      : compiled(std::move(grammar)),
        tokens(std::move(name_tokens)),
        json_begins(source.json_begins) {
    if (source.kind == GrammarSource::Kind::kJsonSchema) json_begins.emplace_back();
    FOX_CHECK(tokens != nullptr);
    const int vocabulary = compiled.GetTokenizerInfo().GetVocabSize();
    first_mask.resize(static_cast<size_t>(xgrammar::GetBitmaskSize(vocabulary)));
    const WorkMeter meter(kMaskSteps);
    xgrammar::GrammarMatcher matcher = MatcherOf(compiled);
    may_go_on = FillMask(&matcher, nullptr, &first_mask);
    may_end = matcher.IsTerminated();
    steps_ = meter.spent();
  }
  // MemorySizeBytes leaves out the library's objects and the table of its masks, which the two
  // constants estimate.
  int64_t bytes() const override {
    constexpr size_t kObjectBytes = 1200, kBytesPerMask = 160;
    return static_cast<int64_t>(compiled.MemorySizeBytes() + 4 * first_mask.size() + kObjectBytes +
                                kBytesPerMask * compiled->adaptive_token_mask_cache.size());
  }

  int64_t first_steps() const override { return steps_; }

  const xgrammar::CompiledGrammar compiled;
  const std::shared_ptr<const NameTokens> tokens;
  std::vector<std::string> json_begins;  // see JsonNames; empty: the answer has no JSON
  std::vector<uint32_t> first_mask;
  bool may_end = false, may_go_on = false;

 private:
  int64_t steps_ = 0;
};

const CompiledGrammar& Compiled(const Grammar& grammar) {
  return static_cast<const CompiledGrammar&>(grammar);
}

}  // namespace

struct GrammarMatcher::State {
  explicit State(const CompiledGrammar& grammar)
      : vocabulary(grammar.compiled.GetTokenizerInfo().GetDecodedVocab()),
        matcher(MatcherOf(grammar.compiled)) {
    if (!grammar.json_begins.empty()) names.emplace(*grammar.tokens, grammar.json_begins);
  }

  const std::vector<std::string>& vocabulary;
  xgrammar::GrammarMatcher matcher;
  std::optional<JsonNames> names;
  int64_t mask_steps = kMaskSteps, parse_steps = kParseSteps;
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> ends)
    : grammar_(std::move(grammar)),
      ends_(std::move(ends)),
      mask_(Compiled(*grammar_).first_mask),
      may_end_(Compiled(*grammar_).may_end),
      may_go_on_(Compiled(*grammar_).may_go_on) {
  for (const int32_t id : ends_) {
    FOX_CHECK(id >= 0 && static_cast<size_t>(id) / 32 < mask_.size());
  }
  AllowEnds();
}

GrammarMatcher::~GrammarMatcher() = default;

absl::Status GrammarMatcher::Accept(int32_t id) {
  if (!status_.ok()) return status_;
  try {
    status_ = Follow(id);
  } catch (const std::exception& error) {
    status_ = Invalid(absl::StrCat("the answer is ", OneLine(error.what()), " for its grammar"));
  }
  return status_;
}

absl::Status GrammarMatcher::Follow(int32_t id) {
  int64_t parse_steps = state_ == nullptr ? kParseSteps : state_->parse_steps;
  {
    const WorkMeter meter(parse_steps);
    if (state_ == nullptr) state_ = std::make_unique<State>(Compiled(*grammar_));
    if (!state_->matcher.AcceptToken(id)) {
      return absl::InternalError("a token that the grammar does not allow");
    }
    if (state_->names) state_->names->Read(state_->vocabulary[static_cast<size_t>(id)]);
    steps_ = meter.spent();
  }
  FOX_CHECK(steps_ <= parse_steps);  // else SpendWork has thrown
  state_->parse_steps = parse_steps - steps_;
  state_->mask_steps = std::min(state_->mask_steps + kTokenSteps, kMaskSteps);
  {
    const WorkMeter meter(state_->mask_steps);
    const JsonNames* const names = state_->names ? &*state_->names : nullptr;
    may_go_on_ = FillMask(&state_->matcher, names, &mask_);
    state_->mask_steps -= meter.spent();
    FOX_CHECK(state_->mask_steps >= 0);
    steps_ += meter.spent();
  }
  may_end_ = state_->matcher.IsTerminated();
  AllowEnds();
  return may_go_on_ || may_end_ ? absl::OkStatus() : NothingContinues();
}

void GrammarMatcher::AllowEnds() {
  if (!may_end_) return;
  for (const int32_t id : ends_) mask_[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
}

// --- GrammarCompiler ---

struct GrammarCompiler::Vocabulary {
  explicit Vocabulary(const std::vector<std::string>& tokens)
      : info(xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, std::nullopt,
                                     std::vector<int32_t>{})),
        compiler(info, /*max_threads=*/1, /*cache_enabled=*/false),
        name_tokens(std::make_shared<NameTokens>(info.GetSortedDecodedVocab())) {}
  const xgrammar::TokenizerInfo info;
  xgrammar::GrammarCompiler compiler;
  const std::shared_ptr<const NameTokens> name_tokens;
};

std::unique_ptr<GrammarCompiler> GrammarCompiler::Create(const Tokenizer& tokenizer,
                                                         int64_t vocab_size,
                                                         const std::vector<int32_t>& never,
                                                         const std::string& tags) {
  if (tokenizer.info().json_escaped) return nullptr;
  return std::make_unique<GrammarCompiler>([=, &tokenizer] {
    std::vector<std::string> tokens(static_cast<size_t>(vocab_size));
    for (int32_t id = 0; id < tokenizer.info().vocab_size; ++id) {
      std::string bytes = tokenizer.TokenBytes(id, /*skip_special=*/true);
      const bool text = tokenizer.info().unk_id != id &&
                        (!tokenizer.IsAdded(id) || tags.find(bytes) != std::string::npos) &&
                        std::find(never.begin(), never.end(), id) == never.end();
      if (text) tokens[static_cast<size_t>(id)] = std::move(bytes);
    }
    return tokens;
  });
}

GrammarCompiler::GrammarCompiler(std::function<std::vector<std::string>()> tokens)
    : tokens_(std::move(tokens)) {}

GrammarCompiler::~GrammarCompiler() = default;

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::Compile(const GrammarSource& source,
                                                                        uint64_t tenant,
                                                                        const Charge& charge,
                                                                        Effort effort) {
  auto kept = Find(source, tenant, charge);
  if (!kept.ok() || *kept != nullptr) return kept;
  absl::StatusOr<std::shared_ptr<const Grammar>> made = Make(source, effort);
  return made.ok() ? Use(source, tenant, *std::move(made), charge) : made;
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::Find(const GrammarSource& source,
                                                                     uint64_t tenant,
                                                                     const Charge& charge) {
  return Use(source, tenant, nullptr, charge);
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::Make(const GrammarSource& source,
                                                                     Effort effort) {
  if (absl::Status status = CheckText(source); !status.ok()) return status;
  std::call_once(loaded_, [this] { vocabulary_ = std::make_unique<Vocabulary>(tokens_()); });
  const bool quick = effort == Effort::kQuick;
  std::shared_ptr<const CompiledGrammar> grammar;
  std::string text;
  try {
    std::optional<xgrammar::CompiledGrammar> compiled;
    {
      const WorkMeter meter(quick ? kQuickSteps : kCompileSteps);
      const xgrammar::Grammar parsed = MergeEqualRules(Parse(source, &text));
      if (parsed->NumRules() > kMaxRules) {
        return InvalidAt(HeaviestPlace(CountRules(parsed), text),
                         absl::StrCat("more than ", kMaxRules, " rules"));
      }
      compiled = vocabulary_->compiler.CompileGrammar(parsed);
    }
    grammar = std::make_shared<const CompiledGrammar>(*std::move(compiled), source,
                                                      vocabulary_->name_tokens);
  } catch (const WorkSpent& error) {
    if (quick) return absl::AbortedError("it takes longer");
    return InvalidAt(HeaviestPlace({{error.place, 1}}, text), error.what());
  } catch (const std::exception& error) {
    return Invalid(OneLine(error.what()));
  }
  if (grammar->bytes() > kMaxBytes) {
    return InvalidAt(HeaviestPlace(MaskBytes(grammar->compiled), text),
                     "the compiled grammar is too large");
  }
  if (!grammar->may_go_on && !grammar->may_end) return NothingContinues();
  return grammar;
}

int64_t GrammarCompiler::Kept::bytes() const {
  return grammar->bytes() + static_cast<int64_t>(source.text.size());
}

// Returns the cached grammar, charged for until the last pointer to it is gone. If none is cached,
// `made` is added; null if that is null.
absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::Use(
    const GrammarSource& source, uint64_t tenant, std::shared_ptr<const Grammar> made,
    const Charge& charge) {
  std::list<Kept> dropped;  // outlives the lock: freeing grammars takes long
  const std::lock_guard<std::mutex> lock(mutex_);
  Kept* kept = FindKept(source, tenant);
  if (kept == nullptr && made == nullptr) return nullptr;
  if (kept == nullptr) kept = AddKept(source, tenant, std::move(made), &dropped);
  std::shared_ptr<const Grammar> used = kept->used.lock();
  if (used != nullptr) return used;
  struct Lease {
    std::shared_ptr<const Grammar> grammar;
    std::shared_ptr<void> paid;
  };
  const auto lease = std::make_shared<Lease>();
  lease->grammar = kept->grammar;
  if (charge != nullptr) {
    absl::StatusOr<std::shared_ptr<void>> paid = charge(kept->bytes());
    if (!paid.ok()) return paid.status();
    lease->paid = *std::move(paid);
  }
  used = std::shared_ptr<const Grammar>(lease, lease->grammar.get());
  kept->used = used;
  return used;
}

GrammarCompiler::Kept* GrammarCompiler::FindKept(const GrammarSource& source, uint64_t tenant) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return nullptr;
  const auto place = found->second.places.find({source.kind, source.text});
  if (place == found->second.places.end()) return nullptr;
  std::list<Kept>& kept = found->second.kept;
  kept.splice(kept.begin(), kept, place->second);
  return &kept.front();
}

// Beyond kMaxKeptBytes, the tenant with the most bytes loses its least recently used grammars.
GrammarCompiler::Kept* GrammarCompiler::AddKept(const GrammarSource& source, uint64_t tenant,
                                                std::shared_ptr<const Grammar> grammar,
                                                std::list<Kept>* dropped) {
  FOX_CHECK(grammar != nullptr);
  Tenant& owner = tenants_[tenant];
  owner.kept.push_front({source, std::move(grammar), {}});
  Kept& added = owner.kept.front();
  const std::pair key(added.source.kind, std::string_view(added.source.text));
  FOX_CHECK(owner.places.try_emplace(key, owner.kept.begin()).second);
  AddBytes(tenant, &owner, added.bytes());
  while (kept_bytes_ > kMaxKeptBytes) {
    const uint64_t largest = by_bytes_.rbegin()->second;
    Tenant& loser = tenants_[largest];
    FOX_CHECK(!loser.kept.empty());
    Kept& oldest = loser.kept.back();
    loser.places.erase({oldest.source.kind, oldest.source.text});
    dropped->splice(dropped->begin(), loser.kept, std::prev(loser.kept.end()));
    AddBytes(largest, &loser, -oldest.bytes());
  }
  return &added;
}

void GrammarCompiler::AddBytes(uint64_t id, Tenant* tenant, int64_t bytes) {
  by_bytes_.erase({tenant->bytes, id});
  kept_bytes_ += bytes;
  tenant->bytes += bytes;
  FOX_CHECK(tenant->bytes >= 0 && kept_bytes_ >= tenant->bytes);
  FOX_CHECK(tenant->kept.size() == tenant->places.size());
  if (tenant->kept.empty()) {
    tenants_.erase(id);
  } else {
    by_bytes_.emplace(tenant->bytes, id);
  }
}

int64_t GrammarCompiler::kept_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_bytes_;
}

}  // namespace fox
