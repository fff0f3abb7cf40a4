// Speculation: draft tokens, which may follow, so that one step computes several tokens of a
// sequence. What a step samples behind a draft counts if the draft was right, and where rows have
// the same bits in any batch, drafts change when a token comes, never which.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fox {

// Drafts are looked up in what the sequence has already: its prompt and its answer.
struct Speculation {
  int32_t tokens = 0;                      // drafts of a step, at most; 0: none
  int32_t lookup_max = 5, lookup_min = 5;  // last tokens that must have occurred before
};

inline constexpr int32_t kMostDrafts = 14;
// Tokens among which a step looks for drafts, of all its sequences together.
inline constexpr int64_t kDraftWindow = 1 << 16;

// Up to `count` tokens that followed where as many of the last tokens occurred before as possible,
// of several places the last; without the first `skip`, which are sampled already and not known.
// Looks at the last `window` tokens.
std::vector<int32_t> LookUpDrafts(const std::vector<int32_t>& tokens, const Speculation& how,
                                  int64_t skip, int64_t count, int64_t window);

// How good a sequence's drafts were, as a number of failures. After bad ones it waits for more and
// more tokens, then tries one draft; so it does at first.
class DraftRecord {
 public:
  bool MayDraft(int64_t length) const { return length >= resume_at_; }
  int64_t most() const { return failures_ < 2 ? kMostDrafts : 1; }
  void OnDrafted(int64_t count) { drafted_ = count, accepted_ = 0; }
  void OnAccepted() { ++accepted_; }
  // All that was drafted is collected.
  void Judge(int64_t length) {
    if (drafted_ == 0) return;
    const bool pays = 2 * accepted_ >= std::min(drafted_, kEnough);
    failures_ = pays ? failures_ / 2 : std::min(failures_ + 1, kMostFailures);
    if (!pays) resume_at_ = length + (int64_t{1} << (3 * failures_ / 2));
    drafted_ = 0;
  }

 private:
  static constexpr int64_t kEnough = 4;
  static constexpr int kMostFailures = 4;
  int64_t drafted_ = 0, accepted_ = 0, resume_at_ = 0;
  int failures_ = 2;
};

}  // namespace fox
