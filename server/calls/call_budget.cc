// CallBudget: see call_budget.h.
#include "server/calls/call_budget.h"

#include <algorithm>

namespace fox {

CallBudget::Share::~Share() {
  if (budget_ != nullptr) budget_->Remove(client_, 1, bytes_);
}

bool CallBudget::Share::Grow(int64_t bytes) {
  if (budget_ != nullptr && !budget_->Add(client_, 0, bytes)) return false;
  bytes_ += bytes;
  return true;
}

void CallBudget::Share::Shrink(int64_t bytes) {
  bytes = std::min(bytes, bytes_);
  if (bytes <= 0) return;
  if (budget_ != nullptr) budget_->Remove(client_, 0, bytes);
  bytes_ -= bytes;
}

absl::StatusOr<CallBudget::Share> CallBudget::Take(uint64_t client, int64_t bytes) {
  if (!Add(client, 1, bytes)) {
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

bool CallBudget::Add(uint64_t client, int64_t calls, int64_t bytes) {
  const MutexLock lock(mutex_);
  const auto it = clients_.find(client);
  const Holding held = it == clients_.end() ? Holding{} : it->second;
  const int64_t kept = std::min((max_calls_ + 63) / 64, max_calls_ - 1);
  if (total_.calls + calls > max_calls_ || held.calls + calls > max_calls_ - kept) return false;
  if (total_.bytes + bytes > max_bytes_ || held.bytes + bytes > (max_bytes_ + 1) / 2) return false;
  total_ = {total_.calls + calls, total_.bytes + bytes};
  clients_[client] = {held.calls + calls, held.bytes + bytes};
  return true;
}

void CallBudget::Remove(uint64_t client, int64_t calls, int64_t bytes) {
  const MutexLock lock(mutex_);
  total_ = {total_.calls - calls, total_.bytes - bytes};
  const auto it = clients_.find(client);
  it->second = {it->second.calls - calls, it->second.bytes - bytes};
  if (it->second.calls == 0) clients_.erase(it);
}

}  // namespace fox
