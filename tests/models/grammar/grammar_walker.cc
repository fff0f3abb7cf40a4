// A program for grammar_oracle_test.py: compiles grammars for a vocabulary and writes random
// answers of them. argv[1] is a file of tokens, each a length (4 bytes, little-endian) and its
// bytes; id 0 ends an answer. Reads lines of {"kind", "source", "walks", "steps"} and writes for
// each a line of {"error"} or {"seconds", "bytes", "texts", "worst_steps", "stopped"}.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "models/grammar/grammar.h"
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

// A random answer. In its second half, tokens that close something are preferred.
Walk WalkOnce(const std::shared_ptr<const Grammar>& grammar, const std::vector<std::string>& tokens,
              uint32_t seed, int steps) {
  std::mt19937 random(seed);
  GrammarMatcher matcher(grammar, {0});
  Walk walk;
  for (int step = 0; step < steps && matcher.status().ok() && !matcher.must_end(); ++step) {
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 1; id < static_cast<int32_t>(tokens.size()); ++id) {
      if ((matcher.mask()[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      allowed.push_back(id);
      const std::string& token = tokens[static_cast<size_t>(id)];
      const bool closes = token.find_first_of("\"}]\\") != token.npos;
      if (closes && token.size() < 4) closing.push_back(id);
    }
    if (matcher.may_end() && (allowed.empty() || random() % 4 == 0)) break;
    if (allowed.empty()) break;
    const bool closes = !closing.empty() && (step > steps / 2 || random() % 3 == 0);
    const auto& from = closes ? closing : allowed;
    const int32_t id = from[random() % from.size()];
    walk.text += tokens[static_cast<size_t>(id)];
    if (!matcher.Accept(id).ok()) break;
    walk.worst_steps = std::max(walk.worst_steps, matcher.steps());
  }
  walk.ended = matcher.status().ok() && matcher.may_end();
  if (!matcher.status().ok()) walk.stopped = std::string(matcher.status().message());
  return walk;
}

Json Answer(GrammarCompiler* compiler, const std::vector<std::string>& tokens, const Json& ask) {
  const auto kind = ask["kind"] == "schema"  ? GrammarSource::Kind::kJsonSchema
                    : ask["kind"] == "regex" ? GrammarSource::Kind::kRegex
                                             : GrammarSource::Kind::kGrammar;
  const std::clock_t start = std::clock();
  const auto grammar = compiler->Compile({kind, ask["source"].get<std::string>()});
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (!grammar.ok()) return {{"error", std::string(grammar.status().message())}};
  Json out = {{"seconds", seconds},
              {"bytes", (*grammar)->bytes()},
              {"texts", Json::array()},
              {"worst_steps", 0},
              {"stopped", ""}};
  for (int i = 0; i < ask["walks"].get<int>(); ++i) {
    const Walk walk = WalkOnce(*grammar, tokens, static_cast<uint32_t>(i), ask["steps"]);
    if (walk.ended) {  // each byte is written as a code point of Latin-1
      std::string text;
      for (const char c : walk.text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x80) text += static_cast<char>(0xc0 | byte >> 6);
        text += static_cast<char>(byte < 0x80 ? byte : 0x80 | (byte & 0x3f));
      }
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
