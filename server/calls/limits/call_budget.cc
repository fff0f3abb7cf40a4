// CallBudget: shares, and the bounds of a client. See call_budget.h.
#include "server/calls/limits/call_budget.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace fox {

CallBudget::Share::~Share() {
  if (budget_ != nullptr) budget_->Change(client_, -1, -taken_);
}

int64_t CallBudget::Share::ChangeFor(int64_t bytes) const {
  constexpr int64_t kStep = 4096;
  const int64_t more = held_ + bytes - taken_;
  if (more > 0) return (more + kStep - 1) / kStep * kStep;
  return more < -2 * kStep ? more + kStep : 0;
}

bool CallBudget::Share::Hold(int64_t bytes) {
  const int64_t change = ChangeFor(bytes);
  if (change != 0 && budget_ != nullptr && !budget_->Change(client_, 0, change)) return false;
  taken_ += change;
  held_ += bytes;
  FOX_CHECK(taken_ >= 0);
  return true;
}

absl::StatusOr<CallBudget::Share> CallBudget::TakeShare(uint64_t client, int64_t bytes) {
  if (Exceeds(1, bytes)) return MessageTooLarge();
  if (!Change(client, 1, bytes)) {
    return absl::ResourceExhaustedError("too many calls, or too much in them, at once");
  }
  return Share(this, client, bytes);
}

int64_t CallBudget::calls() const {
  const MutexLock lock(mutex_);
  return total_.calls;
}

int64_t CallBudget::bytes() const {
  const MutexLock lock(mutex_);
  return total_.bytes;
}

bool CallBudget::HoldsMost(uint64_t client, int64_t few) const {
  const MutexLock lock(mutex_);
  const auto it = clients_.find(client);
  if (it == clients_.end() || it->second.calls <= few) return false;
  return it->second.calls * static_cast<int64_t>(clients_.size()) >= total_.calls;
}

bool CallBudget::Change(uint64_t client, int64_t calls, int64_t bytes) {
  const MutexLock lock(mutex_);
  const auto it = clients_.emplace(client, Holding()).first;
  const Holding total = {total_.calls + calls, total_.bytes + bytes};
  const Holding held = {it->second.calls + calls, it->second.bytes + bytes};
  const bool fits =
      (calls <= 0 || (total.calls <= max_calls_ && held.calls <= max_client_calls())) &&
      (bytes <= 0 || (total.bytes <= max_bytes_ && held.bytes <= max_client_bytes()));
  if (fits) {
    FOX_CHECK(held.calls >= 0 && held.bytes >= 0);
    total_ = total;
    it->second = held;
  }
  if (it->second.calls == 0) {
    FOX_CHECK(it->second.bytes == 0);  // each share gives back its bytes
    clients_.erase(it);
  }
  return fits;
}

absl::Status AnswersUnread() {
  return absl::ResourceExhaustedError("too much waits to be read by clients");
}

absl::Status MessageTooLarge() {
  return absl::InvalidArgumentError(
      "the message takes more than a client may hold, half of --call-memory-mb or its part of "
      "--max-calls, for which each prompt counts; raise them or send less at once");
}

absl::Status AnswerTooLarge() {
  return absl::InvalidArgumentError(
      "the answer takes more than half of --call-memory-mb; raise it, send fewer or shorter "
      "prompts at once, or ask for fewer log-probabilities");
}

}  // namespace fox
