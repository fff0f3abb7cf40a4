// Grammars by xgrammar, whose headers are seen here alone. See grammar.h.
#include "models/grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "grammar_impl.h"
#include "models/grammar/equal_rules.h"
#include "models/grammar/json_schema_check.h"
#include "models/grammar/work_meter.h"
#include "regex_converter.h"
#include "xgrammar/xgrammar.h"

namespace xgrammar {
namespace {
thread_local std::string warning;  // the first since it was cleared
}  // namespace

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}
// Warnings say what is ignored.
void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  if (warning.empty()) warning = message;
}
}  // namespace xgrammar

namespace fox {
namespace {

constexpr int64_t kCompileSteps = 100'000'000;  // one or two seconds
constexpr int64_t kMaxBytes = 16 << 20;         // of a compiled grammar
constexpr int64_t kKeptBytes = 64 << 20;        // of those that no request may need
constexpr int kMaxRules = 1 << 14;              // the library numbers them in 16 bits
// Of a matcher: masks may take so many steps at once, and so many for each token. What a token adds
// to the parse stays, at about 40 bytes a step.
constexpr int64_t kMaskSteps = 500'000, kTokenSteps = 150'000, kParseSteps = 4'000'000;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// One line, not too long, of what the library says.
std::string OneLine(const std::string& message) { return absl::CHexEscape(message.substr(0, 200)); }

class CompiledGrammar final : public Grammar {
 public:
  explicit CompiledGrammar(xgrammar::CompiledGrammar grammar)
      : compiled(std::move(grammar)), bytes_(static_cast<int64_t>(compiled.MemorySizeBytes())) {}
  int64_t bytes() const override { return bytes_; }

  const xgrammar::CompiledGrammar compiled;
  std::shared_ptr<void> charge;

 private:
  const int64_t bytes_;
};

absl::Status CheckText(const GrammarSource& source) {
  if (source.text.size() > kMaxGrammarBytes) {
    return Invalid(absl::StrCat("at most ", kMaxGrammarBytes, " bytes"));
  }
  if (source.text.find('\0') != std::string::npos) return Invalid("contains a NUL character");
  return source.kind == GrammarSource::Kind::kJsonSchema ? CheckJsonSchema(source.text)
                                                         : absl::OkStatus();
}

xgrammar::Grammar Parse(const GrammarSource& source) {
  switch (source.kind) {
    case GrammarSource::Kind::kRegex:
      return xgrammar::Grammar::FromEBNF(
          absl::StrCat("regex ::= ", xgrammar::RegexToEBNF(source.text, false)), "regex");
    case GrammarSource::Kind::kGrammar:
      return xgrammar::Grammar::FromEBNF(source.text);
    case GrammarSource::Kind::kStructuralTag: {
      auto grammar = xgrammar::Grammar::FromStructuralTag(source.text);
      if (auto* error = std::get_if<xgrammar::StructuralTagError>(&grammar)) {
        std::visit([](const auto& e) { throw std::runtime_error(e.what()); }, *error);
      }
      return std::get<xgrammar::Grammar>(std::move(grammar));
    }
    case GrammarSource::Kind::kJsonSchema:
      break;
  }
  // On one line: a model that may write white space anywhere may write it for ever.
  return xgrammar::Grammar::FromJSONSchema(source.text, /*any_whitespace=*/false);
}

}  // namespace

GrammarSource ChoiceGrammar(const std::vector<std::string>& choices) {
  GrammarSource source{GrammarSource::Kind::kGrammar, "root ::= "};
  for (const std::string& choice : choices) {
    if (&choice != &choices.front()) source.text += " | ";
    source.text += '"';
    for (const char c : choice) {
      if (c == '\n') {
        source.text += "\\n";
      } else if (c == '\r') {
        source.text += "\\r";
      } else {
        if (c == '"' || c == '\\') source.text += '\\';
        source.text += c;
      }
    }
    source.text += '"';
  }
  return source;
}

// --- GrammarMatcher ---

struct GrammarMatcher::State {
  State(std::shared_ptr<const Grammar> shared, const xgrammar::CompiledGrammar& compiled)
      : grammar(std::move(shared)),
        // It ends where the grammar may, without a token for it: those are the engine's.
        matcher(compiled, std::nullopt, /*terminate_without_stop_token=*/true) {}

  const std::shared_ptr<const Grammar> grammar;
  xgrammar::GrammarMatcher matcher;
  int64_t mask_steps = kMaskSteps, parse_steps = kParseSteps;
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> ends)
    : ends_(std::move(ends)) {
  const xgrammar::CompiledGrammar& compiled =
      static_cast<const CompiledGrammar&>(*grammar).compiled;
  mask_.resize(
      static_cast<size_t>(xgrammar::GetBitmaskSize(compiled.GetTokenizerInfo().GetVocabSize())));
  try {
    const WorkMeter meter(kMaskSteps);
    state_ = std::make_unique<State>(std::move(grammar), compiled);
    FillMask();
  } catch (const std::exception& error) {
    status_ = Invalid(absl::StrCat("the grammar is ", OneLine(error.what())));
  }
}

GrammarMatcher::~GrammarMatcher() = default;

bool GrammarMatcher::may_end() const { return state_ != nullptr && state_->matcher.IsTerminated(); }

absl::Status GrammarMatcher::Accept(int32_t id) {
  if (!status_.ok()) return status_;
  try {
    {
      const WorkMeter meter(state_->parse_steps);
      if (!state_->matcher.AcceptToken(id)) {
        return status_ = absl::InternalError("a token that the grammar does not allow");
      }
      steps_ = meter.spent();
      state_->parse_steps -= steps_;
    }
    state_->mask_steps = std::min(state_->mask_steps + kTokenSteps, kMaskSteps);
    const WorkMeter meter(state_->mask_steps);
    FillMask();
    steps_ += meter.spent();
    state_->mask_steps -= meter.spent();
  } catch (const std::exception& error) {
    status_ = Invalid(absl::StrCat("the answer is ", OneLine(error.what()), " for its grammar"));
  }
  return status_;
}

void GrammarMatcher::FillMask() {
  int64_t size = static_cast<int64_t>(mask_.size());
  DLTensor tensor{mask_.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &size, nullptr, 0};
  state_->matcher.FillNextTokenBitmask(&tensor);
  may_go_on_ = std::any_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word != 0; });
  if (may_end()) {
    for (const int32_t id : ends_) mask_[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  } else if (!may_go_on_) {
    status_ = Invalid("no token of the vocabulary continues the answer");
  }
}

// --- GrammarCompiler ---

struct GrammarCompiler::Vocabulary {
  explicit Vocabulary(const std::vector<std::string>& tokens)
      : compiler(xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, std::nullopt,
                                         std::vector<int32_t>{}),
                 /*max_threads=*/1, /*cache_enabled=*/false) {}
  xgrammar::GrammarCompiler compiler;
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
                                                                        const Charge& charge) {
  if (std::shared_ptr<const Grammar> kept = Find(source)) return kept;
  if (absl::Status status = CheckText(source); !status.ok()) return status;
  std::call_once(loaded_, [this] { vocabulary_ = std::make_unique<Vocabulary>(tokens_()); });
  std::shared_ptr<CompiledGrammar> grammar;
  try {
    const WorkMeter meter(kCompileSteps);
    xgrammar::warning.clear();
    const xgrammar::Grammar parsed = MergeEqualRules(Parse(source));
    if (!xgrammar::warning.empty()) return Invalid(OneLine(xgrammar::warning));
    if (parsed->NumRules() > kMaxRules) {
      return Invalid(absl::StrCat("more than ", kMaxRules, " rules"));
    }
    grammar = std::make_shared<CompiledGrammar>(vocabulary_->compiler.CompileGrammar(parsed));
  } catch (const std::exception& error) {
    return Invalid(OneLine(error.what()));
  }
  if (grammar->bytes() > kMaxBytes) return Invalid("the compiled grammar is too large");
  if (charge != nullptr) {
    absl::StatusOr<std::shared_ptr<void>> paid = charge(grammar->bytes());
    if (!paid.ok()) return paid.status();
    grammar->charge = *std::move(paid);
  }
  Keep(source, grammar);
  return grammar;
}

std::shared_ptr<const Grammar> GrammarCompiler::Find(const GrammarSource& source) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const Kept& kept) { return kept.source == source; });
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->grammar;
}

void GrammarCompiler::Keep(const GrammarSource& source, std::shared_ptr<const Grammar> grammar) {
  const auto size = [](const Kept& kept) {
    return kept.grammar->bytes() + static_cast<int64_t>(kept.source.text.size());
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_front({source, std::move(grammar)});
  kept_bytes_ += size(kept_.front());
  for (; kept_bytes_ > kKeptBytes; kept_.pop_back()) kept_bytes_ -= size(kept_.back());
}

int64_t GrammarCompiler::kept_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_bytes_;
}

}  // namespace fox
