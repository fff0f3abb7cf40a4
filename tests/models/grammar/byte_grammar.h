// A test whether a grammar accepts a text, over a vocabulary of all bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/grammar/grammar.h"

namespace fox {

// Token 0 ends an answer; token 1 to 255 is the byte of that value.
inline GrammarCompiler& ByteCompiler() {
  static GrammarCompiler compiler([] {
    std::vector<std::string> tokens = {""};
    for (int byte = 1; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return tokens;
  });
  return compiler;
}

// True if `text` is a whole answer of the grammar.
inline bool Accepts(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  GrammarMatcher matcher(grammar, {0});
  for (const char c : text) {
    const int32_t id = static_cast<unsigned char>(c);
    const bool may = (matcher.mask()[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
    if (!may || !matcher.Accept(id).ok()) return false;
  }
  return matcher.may_end();
}

}  // namespace fox
