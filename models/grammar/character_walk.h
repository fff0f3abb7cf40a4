// CharacterWalk: finds the tokens that lie wholly inside of repeated characters, as in a JSON
// string. It reads a table instead of running the parser, in a fiftieth of the time. Used by
// xgrammar/grammar_compiler.patch when a rule's masks are computed.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <string>

#include "fsm.h"

namespace fox {

// The number N in the name of a rule that grammar_parser.patch made: `...#restN` is at most N
// characters, `...#beforeN` one character that N others may follow. -1: any other rule.
int64_t NumberInName(const std::string& rule_name);

class CharacterWalk {
 public:
  // Reads tokens from `state` of `rule`'s automaton, which must outlive this object. `may_follow`:
  // bytes with which the text behind the rule may begin.
  CharacterWalk(const xgrammar::CompactFSMWithStartEnd& automaton, int32_t rule,
                const std::string& rule_name, int32_t state, const std::bitset<256>& may_follow);

  // True if the rule consists of repeated characters and the state is inside of them.
  bool is_usable() const { return is_usable_; }

  enum class Place { kInside, kOutside, kUnknown };  // kUnknown: the parser has to read it
  Place Of(const std::string& token) const;

 private:
  // Entries of a row that are not states: the byte is not allowed; it completes a character; the
  // rule may end behind it, or only the parser knows.
  static constexpr int32_t kNone = -1, kCharacter = -2, kEnd = -3;
  using Row = std::array<int32_t, 256>;

  int32_t Entry(int32_t state, int32_t rule) const;
  bool Explore(int32_t state, int32_t rule);

  const xgrammar::CompactFSMWithStartEnd& automaton_;
  const int32_t state_;
  int64_t most_ = INT64_MAX;    // characters
  bool repeats_itself_ = true;  // the rule refers to itself, else it counts (NumberInName)
  bool is_before_ = false;      // a rule `...#beforeN`
  bool is_usable_ = false;
  bool is_apart_ = true;         // no character begins with a byte that may follow the rule
  std::map<int32_t, Row> rows_;  // by state: the entry of each byte
};

}  // namespace fox
