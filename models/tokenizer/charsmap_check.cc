// Checks the whole double array of a precompiled_charsmap: a depth-first search over its states,
// which may be shared but must not form a cycle. See sentencepiece_check.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/tokenizer/sentencepiece_check.h"

namespace fox {
namespace {

constexpr size_t kMaxTrieBytes = size_t{8} << 20;
constexpr size_t kMaxReplacementBytes = 1024;
// The library has room for this many entries that begin at one place.
constexpr int kMaxMatches = 32;

uint32_t ReadUnit(const std::string& bytes, size_t at) {
  uint32_t unit = 0;
  for (size_t i = 0; i < 4; ++i) {
    unit |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  }
  return unit;
}

uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }
int HasLeaf(uint32_t unit) { return static_cast<int>((unit >> 8) & 1u); }

// A state is the index that a unit's offset leads to; the unit of byte b is at state ^ b.
class TrieWalk {
 public:
  explicit TrieWalk(std::vector<uint32_t> units)
      : units_(std::move(units)), matches_(units_.size(), kNew) {
    FOX_CHECK(!units_.empty() && units_.size() % 256 == 0);
  }

  // False: a state outside the array, a cycle, or too many entries on one path.
  bool Check() {
    if (!Enter(Offset(units_[0]))) return false;
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      if (frame.next_byte == 256) {
        if (!Leave()) return false;
        continue;
      }
      const uint32_t byte = frame.next_byte++;
      const uint32_t child = frame.state ^ byte;
      const uint32_t unit = units_[child];
      if (Label(unit) != byte) continue;
      const uint32_t state = child ^ Offset(unit);
      if (state < units_.size() && matches_[state] >= 0) {
        frame.most = std::max(frame.most, matches_[state] + HasLeaf(unit));
        continue;
      }
      frame.leaf = HasLeaf(unit);
      if (!Enter(state)) return false;
    }
    return true;
  }

 private:
  static constexpr int kNew = -1, kOpen = -2;
  struct Frame {
    uint32_t state;
    uint32_t next_byte = 0;
    int leaf = 0;  // 1 if the unit of the child that is being visited has an entry, else 0
    int most = 0;  // the most entries on a path from here
  };

  bool Enter(uint32_t state) {
    if (state >= units_.size() || matches_[state] != kNew) return false;
    matches_[state] = kOpen;
    stack_.push_back({state});
    return true;
  }

  bool Leave() {
    FOX_CHECK(!stack_.empty() && matches_[stack_.back().state] == kOpen);
    const Frame done = stack_.back();
    stack_.pop_back();
    matches_[done.state] = done.most;
    if (stack_.empty()) return done.most <= kMaxMatches;
    Frame& parent = stack_.back();
    parent.most = std::max(parent.most, done.most + parent.leaf);
    return parent.most <= kMaxMatches;
  }

  std::vector<uint32_t> units_;
  std::vector<int> matches_;  // by state: the most entries on a path from it, kNew, or kOpen
  std::vector<Frame> stack_;
};

}  // namespace

absl::Status CheckCharsMap(const std::string& charsmap) {
  const auto error = [](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.model: character map: ", what));
  };
  constexpr size_t kHeader = 4;
  if (charsmap.size() < kHeader) return error("truncated");
  const size_t trie_bytes = ReadUnit(charsmap, 0);
  // Whole blocks of 256 units: then all units of a state inside the array are inside, too.
  if (trie_bytes == 0 || trie_bytes % 1024 != 0 || trie_bytes > kMaxTrieBytes) {
    return error("size of the trie");
  }
  if (trie_bytes >= charsmap.size() - kHeader) return error("truncated");
  if (charsmap.back() != '\0') return error("replacements are not terminated");
  size_t replacement = 0;
  for (size_t at = kHeader + trie_bytes; at < charsmap.size(); ++at) {
    replacement = charsmap[at] == '\0' ? 0 : replacement + 1;
    if (replacement > kMaxReplacementBytes) return error("a replacement is too long");
  }
  std::vector<uint32_t> units(trie_bytes / 4);
  for (size_t i = 0; i < units.size(); ++i) units[i] = ReadUnit(charsmap, kHeader + 4 * i);
  if (!TrieWalk(std::move(units)).Check()) return error("broken trie");
  return absl::OkStatus();
}

}  // namespace fox
