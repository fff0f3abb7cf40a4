// Speculation: guesses the tokens that may follow (drafts), so that one step computes several
// tokens of a sequence. The token sampled after a draft counts if the draft was right. Where rows
// have the same bits in any batch, drafts change when a token comes, never which token comes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fox {

// Drafts are looked up in the sequence's own prompt and answer.
struct Speculation {
  int32_t tokens = 0;                      // drafts of a step, at most; 0: none
  int32_t lookup_max = 5, lookup_min = 5;  // length of the suffix that must have occurred before
};

inline constexpr int32_t kMaxDrafts = 14;  // of a sequence in a step
// Tokens in which a step looks for drafts, all its sequences together.
inline constexpr int64_t kDraftWindow = 1 << 16;

// N-gram lookup: up to `count` tokens after the latest earlier occurrence of the longest matching
// suffix, in the last `window` tokens. Leaves out the first `skip` of them, whose positions are
// already being sampled.
std::vector<int32_t> LookUpDrafts(const std::vector<int32_t>& tokens, const Speculation& how,
                                  int64_t skip, int64_t count, int64_t window);

// How good a sequence's drafts were, as a number of failures. After bad drafts the sequence waits
// for more and more tokens, then tries a single draft. A new sequence begins as after two failures.
class DraftRecord {
 public:
  bool MayDraft(int64_t length) const { return length >= resume_at_; }
  int64_t max_drafts() const { return failures_ < 2 ? kMaxDrafts : 1; }
  void OnDrafted(int64_t count) { drafted_ = count, accepted_ = 0; }
  void OnAccepted() { ++accepted_; }
  // All drafts of the step are collected.
  void Judge(int64_t length) {
    if (drafted_ == 0) return;
    const bool pays = 2 * accepted_ >= std::min(drafted_, kEnough);
    failures_ = pays ? failures_ / 2 : std::min(failures_ + 1, kMaxFailures);
    if (!pays) resume_at_ = length + (int64_t{1} << (3 * failures_ / 2));
    drafted_ = 0;
  }

 private:
  static constexpr int64_t kEnough = 4;
  static constexpr int kMaxFailures = 4;
  int64_t drafted_ = 0, accepted_ = 0, resume_at_ = 0;
  int failures_ = 2;
};

}  // namespace fox
