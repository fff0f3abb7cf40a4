// CharacterWalk: which tokens are inside of repeated characters, as those of a string in JSON, read
// without the parser, at a fiftieth of its time. The patch of grammar_compiler.cc asks it.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <string>

#include "fsm.h"

namespace fox {

// Of a rule that grammar_parser.patch names `...#restN`: at most N characters; or `...#beforeN`:
// one character that N others may follow. -1: of another.
int64_t NumberInName(const std::string& rule_name);

class CharacterWalk {
 public:
  // Of a state of the rule, whose automaton it is. `may_follow`: bytes at which a text behind the
  // rule may begin. The automaton must outlive it.
  CharacterWalk(const xgrammar::CompactFSMWithStartEnd& automaton, int32_t rule,
                const std::string& rule_name, int32_t state, const std::bitset<256>& may_follow);

  // Whether its rule is characters that repeat, and the state one of them.
  bool is_usable() const { return is_usable_; }

  enum class Place { kInside, kOutside, kUnknown };  // kUnknown: the parser knows
  Place Of(const std::string& token) const;

 private:
  // Of a byte, unless it is a state: none; a character ends; the rule ends, or the parser knows.
  static constexpr int32_t kNone = -1, kCharacter = -2, kEnd = -3;
  using Row = std::array<int32_t, 256>;

  int32_t Entry(int32_t state, int32_t rule) const;
  bool Explore(int32_t state, int32_t rule);

  const xgrammar::CompactFSMWithStartEnd& automaton_;
  const int32_t state_;
  int64_t most_ = INT64_MAX;
  bool repeats_itself_ = true, is_before_ = false, is_usable_ = false, is_apart_ = true;
  std::map<int32_t, Row> rows_;
};

}  // namespace fox
