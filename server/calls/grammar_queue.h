// GrammarQueue: grammars that wait to be compiled, on threads of their own that yield the processor
// to all others. Clients take turns; each grammar is first tried for some ten milliseconds, and one
// that takes longer goes on to another thread, so that no small grammar waits for a large one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "models/grammar/grammar.h"
#include "server/calls/admission_pool.h"

namespace fox {

// All methods may be called from any thread.
class GrammarQueue {
 public:
  using Effort = GrammarCompiler::Effort;
  // False: it takes more than Effort::kQuick, and is called again.
  using Task = std::function<bool(Effort)>;

  ~GrammarQueue();  // when all tasks have run

  // Runs the task in the client's turn. ResourceExhausted: four other grammars of the client wait.
  absl::Status Post(uint64_t client, const GrammarSource& source, Task task);

 private:
  struct Waiting {
    int64_t tasks = 0;  // that want the same grammar, as one call's prompts do
    bool is_long = false;
  };
  using Key = std::pair<uint64_t, std::string>;  // the client's, with the text

  void TryQuick(const Key& key, const Task& task);
  bool IsLong(const Key& key) const;
  void End(const Key& key);

  mutable Mutex mutex_;
  CondVar ended_;
  std::map<Key, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  AdmissionPool pool_{1, /*all_nice=*/true};
};

}  // namespace fox
