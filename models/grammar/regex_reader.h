// ReadRegex: a regular expression of ECMAScript as a tree of sets of characters and groups.
#pragma once

#include <string>
#include <vector>

#include "models/grammar/utf8_ranges.h"

namespace fox {

struct RegexNode {
  using Sequence = std::vector<RegexNode>;
  static constexpr int kNoEnd = -1;  // of `most`
  enum class Kind { kSet, kGroup, kBegin, kEnd };
  Kind kind = Kind::kSet;
  CodePoints set = {};
  std::vector<Sequence> ways = {};  // of a group
  int least = 1, most = 1;          // repetitions
  bool has_anchor = false;          // is ^ or $, or holds one
};

// Returns a group of the alternatives. Throws std::runtime_error if the expression is malformed or
// not supported, and WorkSpent.
RegexNode ReadRegex(const std::string& regex);

}  // namespace fox
