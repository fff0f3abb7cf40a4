// GrammarQueue: grammars that wait to be compiled, on threads of their own that yield the processor
// to all others. Clients take turns. Each grammar is first tried for some ten milliseconds; if that
// does not suffice, another thread compiles it, so that no small grammar waits for a large one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "models/grammar/grammar.h"
#include "server/calls/limits/admission_pool.h"

namespace fox {

// All methods may be called from any thread.
class GrammarQueue {
 public:
  using Effort = GrammarCompiler::Effort;
  // Returns false if the grammar takes more than Effort::kQuick; the task is then called again.
  using Task = std::function<bool(Effort)>;

  // `has_threads` false: the owner calls RunNext instead, as a simulation does.
  explicit GrammarQueue(bool has_threads = true)
      : has_threads_(has_threads),
        pool_(has_threads ? 1 : AdmissionPool::kNoThreads, /*all_nice=*/true) {}
  ~GrammarQueue();  // waits until all tasks have run

  // Runs the task in the client's turn. ResourceExhausted: four other grammars of the client wait.
  absl::Status Post(uint64_t client, const GrammarSource& source, Task task);
  // Without threads: runs the next task. False: none was queued.
  bool RunNext() { return pool_.RunNext(); }

 private:
  struct Waiting {
    int64_t tasks = 0;  // several may want one grammar, as the prompts of one call do
    bool is_long = false;
  };
  using Key = std::pair<uint64_t, std::string>;  // client, kind and text

  void TryQuick(const Key& key, const Task& task);
  bool IsLong(const Key& key) const;
  void EndTask(const Key& key);

  mutable Mutex mutex_;
  CondVar ended_;
  std::map<Key, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  const bool has_threads_;
  AdmissionPool pool_;
};

}  // namespace fox
