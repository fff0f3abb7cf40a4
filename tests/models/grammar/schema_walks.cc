// A program for json_schema_test.py: writes random texts that the grammars of JSON schemas allow.
// Reads lines of {"schema": TEXT, "relax": BOOL, "walks": N, "steps": N, "seed": N} and writes for
// each a line of {"error": TEXT} or {"relaxed": [POINTER, ..], "texts": [TEXT, ..], "stuck": TEXT}.
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/grammar/ebnf_rules.h"
#include "models/grammar/grammar.h"
#include "models/grammar/json_schema.h"
#include "models/grammar/work_meter.h"
#include "nlohmann/json.hpp"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr int32_t kEnd = 0;

// ASCII characters, and pieces with names and with one or more quotes.
const std::vector<std::string>& Tokens() {
  static const std::vector<std::string> tokens = [] {
    std::vector<std::string> out = {""};
    for (int c = 1; c < 128; ++c) out.emplace_back(1, static_cast<char>(c));
    for (const char* piece :
         {"é", "日", "\U0001f600", "{\"", "\": ", "\", \"", "{\"a\"", ", \"a\"", "\"\"", "\"}",
          "}}", "null", "ab\"", "a\": 1, \"", "\"b\": [", "], \"", "name", "\\\"", "\\u00"}) {
      out.emplace_back(piece);
    }
    return out;
  }();
  return tokens;
}

// A random answer; empty if it did not end. `stuck` receives the reason why it could not go on.
std::string Walk(const std::shared_ptr<const Grammar>& grammar, int steps, std::mt19937* random,
                 bool* ended, std::string* stuck) {
  GrammarMatcher matcher(grammar, {kEnd});
  std::string text;
  const double stop = static_cast<double>((*random)() % 1000) / 1000;
  for (int step = 0; step < steps && matcher.status().ok(); ++step) {
    *ended = matcher.must_end() ||
             (matcher.may_end() && static_cast<double>((*random)() % 1000) < 1000 * stop);
    if (*ended) return text;
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 1; id < static_cast<int32_t>(Tokens().size()); ++id) {
      if ((matcher.mask()[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      allowed.push_back(id);
      const char first = Tokens()[static_cast<size_t>(id)][0];
      if (first == '"' || first == '}' || first == ']') closing.push_back(id);
    }
    if (allowed.empty()) break;
    const bool closes = !closing.empty() && (step > steps / 2 || (*random)() % 4 == 0);
    const std::vector<int32_t>& from = closes ? closing : allowed;
    const int32_t id = from[(*random)() % from.size()];
    text += Tokens()[static_cast<size_t>(id)];
    matcher.Accept(id).IgnoreError();
  }
  if (!matcher.status().ok()) *stuck = absl::StrCat(matcher.status().message(), " after ", text);
  return "";
}

Json Answer(const Json& asked, GrammarCompiler* compiler) {
  EbnfRules rules;
  absl::StatusOr<SchemaRules> schema;
  {
    const WorkMeter meter(4'000'000);
    schema = AddSchemaRules(asked["schema"], asked["relax"], &rules);
  }
  if (!schema.ok()) return {{"error", schema.status().message()}};
  const auto grammar =
      compiler->Compile({GrammarSource::Kind::kCalls,
                         absl::StrCat("root ::= ", schema->root, "\n", rules.text()),
                         {""}});
  if (!grammar.ok()) return {{"error", grammar.status().message()}};
  std::mt19937 random(asked["seed"].get<uint32_t>());
  Json out = {{"relaxed", schema->relaxed}, {"texts", Json::array()}, {"stuck", ""}};
  std::string stuck;
  for (int i = 0; i < asked["walks"]; ++i) {
    bool ended = false;
    const std::string text = Walk(*grammar, asked["steps"], &random, &ended, &stuck);
    if (ended) out["texts"].push_back(text);
  }
  out["stuck"] = stuck;
  return out;
}

}  // namespace
}  // namespace fox

int main() {
  fox::GrammarCompiler compiler(fox::Tokens);
  std::string line;
  while (std::getline(std::cin, line)) {
    const fox::Json answer = fox::Answer(fox::Json::parse(line), &compiler);
    std::cout << answer.dump(-1, ' ', true, fox::Json::error_handler_t::replace) << std::endl;
  }
}
