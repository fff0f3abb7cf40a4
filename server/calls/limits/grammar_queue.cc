// GrammarQueue: the waiting grammars and their turns. See grammar_queue.h.
#include "server/calls/limits/grammar_queue.h"

#include <utility>

#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr int64_t kMaxWaiting = 4;  // grammars of a client: each may take a second

}  // namespace

GrammarQueue::~GrammarQueue() {
  while (!has_threads_ && RunNext()) continue;
  const MutexLock lock(mutex_);
  while (!waiting_.empty()) ended_.Wait(mutex_);
}

absl::Status GrammarQueue::Post(uint64_t client, const GrammarSource& source, Task task) {
  // The texts of two kinds differ in their first character.
  const Key key(client, std::to_string(static_cast<int>(source.kind)) + source.text);
  {
    const MutexLock lock(mutex_);
    if (waiting_.count(key) == 0) {
      int64_t others = 0;
      for (auto it = waiting_.lower_bound({client, ""});
           it != waiting_.end() && it->first.first == client; ++it) {
        ++others;
      }
      if (others > kMaxWaiting) {
        return absl::ResourceExhaustedError("too many grammars wait to be compiled");
      }
    }
    ++waiting_[key].tasks;
  }
  pool_.Post(client, static_cast<int64_t>(source.text.size()),
             [this, key, task = std::move(task)] { TryQuick(key, task); });
  return absl::OkStatus();
}

// Another task may have tried the same grammar already.
void GrammarQueue::TryQuick(const Key& key, const Task& task) {
  if (!IsLong(key) && task(Effort::kQuick)) return EndTask(key);
  {
    const MutexLock lock(mutex_);
    waiting_[key].is_long = true;
  }
  pool_.Post(key.first, AdmissionPool::kLargeBytes + 1, [this, key, task] {
    task(Effort::kWhole);
    EndTask(key);
  });
}

bool GrammarQueue::IsLong(const Key& key) const {
  const MutexLock lock(mutex_);
  return waiting_.at(key).is_long;
}

void GrammarQueue::EndTask(const Key& key) {
  const MutexLock lock(mutex_);
  const auto it = waiting_.find(key);
  FOX_CHECK(it != waiting_.end() && it->second.tasks > 0);
  if (--it->second.tasks > 0) return;
  waiting_.erase(it);
  ended_.NotifyAll();
}

}  // namespace fox
