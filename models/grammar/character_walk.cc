// The automaton of one character becomes a table of bytes by states. See character_walk.h.
#include "models/grammar/character_walk.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/core/check.h"
#include "models/grammar/work_meter.h"

namespace fox {

int64_t NumberInName(const std::string& rule_name) {
  const size_t mark = rule_name.find('#');
  if (mark == rule_name.npos) return -1;
  return std::strtoll(rule_name.c_str() + rule_name.find_first_of("0123456789", mark), nullptr, 10);
}

CharacterWalk::CharacterWalk(const xgrammar::CompactFSMWithStartEnd& automaton, int32_t rule,
                             const std::string& rule_name, int32_t state,
                             const std::bitset<256>& may_follow)
    : automaton_(automaton), state_(state) {
  const int64_t number = NumberInName(rule_name);
  if (number >= 0) most_ = number;
  repeats_itself_ = number < 0;
  is_before_ = rule_name.find("#before") != rule_name.npos;
  const int32_t start = automaton.GetStart();
  bool has_character = false;
  if (!Explore(start, rule) || !rows_.contains(state)) return;
  for (const auto& [id, row] : rows_) {
    for (const int32_t entry : row) has_character |= entry == kCharacter;
  }
  is_usable_ = has_character;
  for (size_t byte = 0; byte < 256; ++byte) {
    is_apart_ &= rows_[start][byte] == kNone || !may_follow[byte];
  }
}

// The entry of an edge to `state`.
int32_t CharacterWalk::Entry(int32_t state, int32_t rule) const {
  const auto& edges = automaton_.GetFsm().GetEdges(state);
  if (edges.size() == 0) {
    return repeats_itself_ || !automaton_.IsEndState(state) ? kEnd : kCharacter;
  }
  if (state == automaton_.GetStart()) return kCharacter;
  if (edges.size() == 1 && edges.begin()->IsRuleRef() && !automaton_.IsEndState(state)) {
    const bool goes_on = !is_before_ && (!repeats_itself_ || edges.begin()->GetRefRuleId() == rule);
    return goes_on ? kCharacter : kEnd;
  }
  const bool reads_on =
      std::all_of(edges.begin(), edges.end(), [](const auto& edge) { return edge.IsCharRange(); });
  return reads_on && !automaton_.IsEndState(state) ? state : kEnd;
}

// Fills the rows of `state` and of all states behind it, up to the end of a character. False if the
// automaton cannot be such a table: it is too large or ambiguous, or has an edge that is no byte.
bool CharacterWalk::Explore(int32_t state, int32_t rule) {
  if (rows_.contains(state)) return true;
  if (rows_.size() > 64) return false;
  SpendWork(32);
  Row& row = rows_[state];
  row.fill(kNone);
  for (const auto& edge : automaton_.GetFsm().GetEdges(state)) {
    if (!edge.IsCharRange()) return false;
    FOX_CHECK(edge.min <= edge.max && edge.max < static_cast<int32_t>(row.size()));
    const int32_t entry = Entry(edge.target, rule);
    for (int32_t byte = edge.min; byte <= edge.max; ++byte) {
      int32_t& at = row[static_cast<size_t>(byte)];
      if (at != kNone && at != entry) return false;
      at = entry;
    }
    if (entry >= 0 && !Explore(entry, rule)) return false;
  }
  return true;
}

CharacterWalk::Place CharacterWalk::Of(const std::string& token) const {
  FOX_CHECK(is_usable_);
  const int32_t start = automaton_.GetStart();
  const Place outside = is_apart_ ? Place::kOutside : Place::kUnknown;
  int64_t count = 0;
  int32_t state = state_;
  const Row* row = &rows_.at(state);
  for (const char c : token) {
    const int32_t entry = (*row)[static_cast<uint8_t>(c)];
    if (state == start && entry == kNone) return Place::kUnknown;
    if (state == start && count == most_) return is_before_ ? Place::kUnknown : outside;
    if (entry == kNone) return outside;
    if (entry == kEnd) return Place::kUnknown;
    if (entry == kCharacter) ++count;
    if (entry == kCharacter && state == start) continue;
    state = entry == kCharacter ? start : entry;
    row = &rows_.at(state);
  }
  return Place::kInside;
}

}  // namespace fox
