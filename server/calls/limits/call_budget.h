// CallBudget: one budget of calls and bytes for everything that calls hold outside of the engine:
// messages that wait to be parsed, answers that wait to be read. A call takes its share before its
// message is parsed and gives it back when its last byte is written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"

namespace fox {

// All methods may be called from any thread. The budget must outlive its shares.
class CallBudget {
 public:
  // One call's part of the budget, given back when the share dies. Used by one thread at a time.
  class Share {
   public:
    Share() = default;  // belongs to no budget: it holds anything
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(client_, other.client_);
      std::swap(taken_, other.taken_);
      std::swap(held_, other.held_);
      return *this;
    }
    ~Share();

    // Changes by `bytes` the memory that the share holds for an answer that waits to be written.
    // The first call releases the request's own bytes. Reserves in steps of 4 KiB, so that not
    // every token takes the budget's lock. False: the budget is full, and nothing has changed.
    bool Hold(int64_t bytes);
    // True if Hold(bytes) fails even where the budget has nothing but this share and `others`
    // bytes.
    bool Exceeds(int64_t bytes, int64_t others) const {
      return budget_ != nullptr && taken_ + ChangeFor(bytes) + others > budget_->max_client_bytes();
    }
    int64_t bytes() const { return taken_; }

   private:
    friend class CallBudget;
    // By how much `taken_` changes if `bytes` more are held.
    int64_t ChangeFor(int64_t bytes) const;
    Share(CallBudget* budget, uint64_t client, int64_t bytes)
        : budget_(budget), client_(client), taken_(bytes) {}

    CallBudget* budget_ = nullptr;
    uint64_t client_ = 0;
    int64_t taken_ = 0, held_ = 0;
  };

  CallBudget(int64_t max_calls, int64_t max_bytes) : max_calls_(max_calls), max_bytes_(max_bytes) {}

  // Takes the share of one call. ResourceExhausted: calls or bytes are used up; or the client holds
  // half of the bytes, or all calls but the last 64th, which is kept for others. MessageTooLarge:
  // the bytes alone are more.
  absl::StatusOr<Share> TakeShare(uint64_t client, int64_t bytes);
  // Exceeds tells whether shares of `calls` calls, with `bytes` in all, are more than any client
  // may hold, so that a call that needs them is refused for good.
  bool Exceeds(int64_t calls, int64_t bytes) const {
    return calls > max_client_calls() || bytes > max_client_bytes();
  }

  int64_t calls() const;
  int64_t bytes() const;
  int64_t max_calls() const { return max_calls_; }
  int64_t max_bytes() const { return max_bytes_; }
  int64_t max_client_bytes() const { return (max_bytes_ + 1) / 2; }
  int64_t max_client_calls() const {
    return max_calls_ - std::min((max_calls_ + 63) / 64, max_calls_ - 1);
  }
  // True if the client holds at least an equal part of all calls, and more than `few`.
  bool HoldsMost(uint64_t client, int64_t few = 0) const;

 private:
  struct Holding {
    int64_t calls = 0, bytes = 0;
  };
  // Adds calls and bytes to the client's holding; negative ones are given back. False: it would be
  // too much, and nothing has changed.
  bool Change(uint64_t client, int64_t calls, int64_t bytes);

  const int64_t max_calls_, max_bytes_;
  mutable Mutex mutex_;
  Holding total_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Holding> clients_ ABSL_GUARDED_BY(mutex_);  // clients with calls
};

// MessageTooLarge is InvalidArgument: a message that no client may ever send under these limits.
absl::Status MessageTooLarge();
// AnswersUnread is ResourceExhausted: answers that wait to be read fill the budget.
absl::Status AnswersUnread();
// AnswerTooLarge is InvalidArgument: the part of an answer that has to be sent at once is more than
// the client may hold, so the same request would fail again.
absl::Status AnswerTooLarge();

}  // namespace fox
