// Schemas, regular expressions, grammars and calls of tools, compiled on a thread with the smallest
// stack that systems give. A refusal is one line. A compiled grammar stays within its bytes and is
// the same when it is compiled again. A walk through it takes bounded steps; for a schema it ends
// in JSON.
#include <pthread.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/grammar/grammar.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

using Kind = GrammarSource::Kind;

#if defined(__SANITIZE_ADDRESS__) || defined(FOX_LIBFUZZER)
constexpr size_t kStackBytes = 4 << 20;  // frames are several times as large
#else
constexpr size_t kStackBytes = 512 << 10;
#endif
constexpr int64_t kMaxBytes = 16 << 20, kMaxSteps = 4'700'000;  // of a grammar; of a whole answer

const std::vector<std::string>& Tokens() {
  static const std::vector<std::string> tokens = [] {
    std::vector<std::string> all = {""};
    for (int byte = 1; byte < 256; ++byte) all.emplace_back(1, static_cast<char>(byte));
    for (const char* piece : {"{\"", "\": ", "\", \"", "\"}", "true", "12", " a", "ab", "\\\""}) {
      all.emplace_back(piece);
    }
    return all;
  }();
  return tokens;
}

bool IsAllowed(const GrammarMatcher& matcher, size_t id) {
  return (matcher.mask()[id / 32] >> (id % 32) & 1) != 0;
}

void Walk(const GrammarSource& source, const std::shared_ptr<const Grammar>& grammar,
          const std::string& choices) {
  GrammarMatcher matcher(grammar, {0});
  std::string text;
  for (size_t i = 0; i < choices.size() && !matcher.must_end(); ++i) {
    std::vector<int32_t> allowed;
    for (size_t id = 1; id < Tokens().size(); ++id) {
      if (IsAllowed(matcher, id)) allowed.push_back(static_cast<int32_t>(id));
    }
    FOX_CHECK(IsAllowed(matcher, 0) == matcher.may_end());
    FOX_CHECK(!allowed.empty());
    const int32_t id = allowed[static_cast<unsigned char>(choices[i]) % allowed.size()];
    const absl::Status status = matcher.Accept(id);
    FOX_CHECK(matcher.steps() <= kMaxSteps);
    if (!status.ok()) return CheckRefusal(status);
    text += Tokens()[static_cast<size_t>(id)];
  }
  // Bytes may have been drawn that are no UTF-8: strings with such ones are no JSON.
  if (source.kind != Kind::kJsonSchema || !matcher.may_end()) return;
  for (char& c : text) c = static_cast<unsigned char>(c) < 128 ? c : 'x';
  try {
    FOX_CHECK(!nlohmann::json::parse(text).is_discarded());
  } catch (const nlohmann::json::out_of_range&) {  // 1e999
  } catch (const nlohmann::json::parse_error&) {
    FOX_CHECK(false && "an answer to a schema that is no JSON");
  }
}

struct Trial {
  GrammarSource source;
  std::string choices;
};

void* Try(void* argument) {
  const Trial& trial = *static_cast<const Trial*>(argument);
  static GrammarCompiler one(Tokens), another(Tokens);
  const auto compile = [&](GrammarCompiler& compiler) {
    return compiler.Compile(trial.source, 0, nullptr, GrammarCompiler::Effort::kQuick);
  };
  const auto grammar = compile(one), again = compile(another);
  FOX_CHECK(grammar.status() == again.status());
  if (!grammar.ok()) {
    if (!absl::IsAborted(grammar.status())) CheckRefusal(grammar.status());
    return nullptr;
  }
  FOX_CHECK((*grammar)->bytes() == (*again)->bytes() && (*grammar)->bytes() <= kMaxBytes);
  FOX_CHECK((*grammar)->first_steps() == (*again)->first_steps());
  FOX_CHECK(GrammarMatcher(*grammar, {0}).mask() == GrammarMatcher(*again, {0}).mask());
  Walk(trial.source, *grammar, trial.choices);
  return nullptr;
}

}  // namespace

FUZZ_TEST(grammar) {
  constexpr Kind kKinds[] = {Kind::kJsonSchema, Kind::kRegex, Kind::kGrammar, Kind::kCalls};
  Trial trial;
  trial.source.kind = kKinds[in.Below(4)];
  trial.choices = in.Text(64);
  trial.source.text = in.Rest();
  pthread_attr_t attributes;
  FOX_CHECK(pthread_attr_init(&attributes) == 0);
  FOX_CHECK(pthread_attr_setstacksize(&attributes, kStackBytes) == 0);
  pthread_t thread = {};
  FOX_CHECK(pthread_create(&thread, &attributes, Try, &trial) == 0);
  FOX_CHECK(pthread_join(thread, nullptr) == 0);
  pthread_attr_destroy(&attributes);
}

}  // namespace fox
