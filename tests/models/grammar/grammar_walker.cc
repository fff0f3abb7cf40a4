// The program of walker.py: compiles grammars for a vocabulary and writes random answers of them.
// argv[1] is a file of tokens, each a length (4 bytes, little-endian) and its bytes; id 0 ends an
// answer. Reads lines of {"kind", "source", "relax", "walks", "steps", "seed", "tries"} and writes
// for each a line of {"error"} or {"seconds", "bytes", "texts", "worst_steps", "stopped",
// "relaxed", "taken"}: of each text in "tries", how many bytes the grammar takes, -1 for all.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "models/grammar/ebnf_rules.h"
#include "models/grammar/grammar.h"
#include "models/grammar/json_schema.h"
#include "models/grammar/work_meter.h"
#include "models/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace fox {
namespace {

using Json = nlohmann::json;

std::vector<std::string> ReadTokens(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> tokens;
  unsigned char size[4];
  while (file.read(reinterpret_cast<char*>(size), 4)) {
    const size_t length = size[0] + 256U * size[1] + 65536U * size[2];
    tokens.emplace_back(length, '\0');
    file.read(tokens.back().data(), static_cast<std::streamsize>(length));
  }
  return tokens;
}

struct Walk {
  std::string text;
  bool ended = false;
  int64_t worst_steps = 0;
  std::string stopped;
};

// A random answer. Each has its own chance to end where it may. In its second half, tokens that
// close something are preferred.
Walk WalkOnce(const std::shared_ptr<const Grammar>& grammar, const std::vector<std::string>& tokens,
              int steps, std::mt19937* random) {
  GrammarMatcher matcher(grammar, {0});
  Walk walk;
  const auto chance = (*random)() % 1000;
  for (int step = 0; step < steps && matcher.status().ok(); ++step) {
    walk.ended = matcher.must_end() || (matcher.may_end() && (*random)() % 1000 < chance);
    if (walk.ended) return walk;
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 1; id < static_cast<int32_t>(tokens.size()); ++id) {
      if ((matcher.mask()[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      allowed.push_back(id);
      const std::string& token = tokens[static_cast<size_t>(id)];
      if (std::string("\"}]").find(token[0]) != token.npos) closing.push_back(id);
    }
    if (allowed.empty()) break;
    const bool closes = !closing.empty() && (step > steps / 2 || (*random)() % 4 == 0);
    const auto& from = closes ? closing : allowed;
    const int32_t id = from[(*random)() % from.size()];
    walk.text += tokens[static_cast<size_t>(id)];
    if (!matcher.Accept(id).ok()) break;
    walk.worst_steps = std::max(walk.worst_steps, matcher.steps());
  }
  if (!matcher.status().ok()) walk.stopped = std::string(matcher.status().message());
  return walk;
}

// The bytes of `text` that the grammar takes, one token for each; -1 if it takes all as an answer.
int BytesTaken(const std::shared_ptr<const Grammar>& grammar,
               const std::vector<std::string>& tokens, const std::string& text) {
  GrammarMatcher matcher(grammar, {0});
  for (size_t at = 0; at < text.size(); ++at) {
    const auto id = std::find(tokens.begin(), tokens.end(), text.substr(at, 1)) - tokens.begin();
    const auto place = static_cast<size_t>(id);
    if (place == tokens.size() || (matcher.mask()[place / 32] >> (id % 32) & 1) == 0 ||
        !matcher.Accept(static_cast<int32_t>(id)).ok()) {
      return static_cast<int>(at);
    }
  }
  return matcher.may_end() ? -1 : static_cast<int>(text.size());
}

// The grammar that `ask` names. A schema is compiled as the engine does or, if it may be relaxed,
// as the arguments of a tool; `relaxed` receives its keywords that are not enforced.
absl::StatusOr<GrammarSource> SourceOf(const Json& ask, std::vector<std::string>* relaxed) {
  const auto text = ask["source"].get<std::string>();
  if (ask["kind"] == "regex") return GrammarSource{GrammarSource::Kind::kRegex, text};
  if (ask["kind"] == "grammar") return GrammarSource{GrammarSource::Kind::kGrammar, text};
  const WorkMeter meter(kSchemaSteps);
  EbnfRules rules;
  const absl::StatusOr<SchemaRules> schema = AddSchemaRules(text, ask["relax"], &rules);
  if (!schema.ok()) return schema.status();
  *relaxed = schema->relaxed;
  if (!ask["relax"]) return GrammarSource{GrammarSource::Kind::kJsonSchema, text};
  return GrammarSource{GrammarSource::Kind::kCalls,
                       absl::StrCat("root ::= ", schema->root, "\n", rules.text()),
                       {""}};
}

Json Answer(GrammarCompiler* compiler, const std::vector<std::string>& tokens, const Json& ask) {
  const std::clock_t start = std::clock();
  std::vector<std::string> relaxed;
  const absl::StatusOr<GrammarSource> source = SourceOf(ask, &relaxed);
  if (!source.ok()) return {{"error", std::string(source.status().message())}};
  const auto grammar = compiler->Compile(*source);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (!grammar.ok()) return {{"error", std::string(grammar.status().message())}};
  Json out = {{"seconds", seconds},     {"bytes", (*grammar)->bytes()},
              {"texts", Json::array()}, {"worst_steps", 0},
              {"stopped", ""},          {"relaxed", relaxed},
              {"taken", Json::array()}};
  for (const Json& text : ask["tries"]) {
    out["taken"].push_back(BytesTaken(*grammar, tokens, text.get<std::string>()));
  }
  std::mt19937 random(ask["seed"].get<uint32_t>());
  for (int i = 0; i < ask["walks"].get<int>(); ++i) {
    const Walk walk = WalkOnce(*grammar, tokens, ask["steps"], &random);
    if (walk.ended) {  // each byte is written as a code point of Latin-1
      std::string text;
      for (const char c : walk.text) AppendUtf8(static_cast<unsigned char>(c), &text);
      out["texts"].push_back(text);
    }
    out["worst_steps"] = std::max(out["worst_steps"].get<int64_t>(), walk.worst_steps);
    if (!walk.stopped.empty()) out["stopped"] = walk.stopped;
  }
  return out;
}

}  // namespace
}  // namespace fox

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<std::string> tokens = fox::ReadTokens(argv[1]);
  fox::GrammarCompiler compiler([&] { return tokens; });
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << fox::Answer(&compiler, tokens, fox::Json::parse(line)).dump() << std::endl;
  }
}
