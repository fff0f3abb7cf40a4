// Auditor: reads prompts and their answers once more, with pruning and without, and compares the
// distributions of the answers' tokens: what pruning changed, measured. Both readings are requests
// to the engine, one after the other and at the lowest priority, and one audit runs at a time. In
// bf16 most of the difference is rounding, because any change flips some: in float32 it is
// pruning's own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/delivery_pool.h"
#include "engine/engine_thread.h"
#include "fox/v1/acp.pb.h"
#include "server/calls/call_metrics.h"

namespace fox {

struct AuditOptions {
  double share = 0;  // of the sequences that end well, audited without being asked for
  double limit = 1;  // an audit in which a token's total variation is larger is a warning
  // The most bytes of logits that each reading keeps. Of an answer whose logits take more, only the
  // last tokens are audited.
  int64_t max_bytes = int64_t{64} << 20;
};

// A sequence to audit.
struct Audited {
  std::string request_id;       // for the log
  std::vector<int32_t> tokens;  // the prompt, then the answer
  int64_t prompt_tokens = 0;    // at least 1, and fewer than `tokens`
  double log_tolerance = 0;     // of the sequence
  // As in the sequence's Request. The pruned reading starts from the snapshot that the sequence
  // left of its prompt, with the same bits, instead of computing the prompt once more.
  std::string cache_salt;
  uint64_t tenant = 0;
  bool bypass_prefix_cache = false;
  Seconds deadline = kNever;
  // Gets the result, or why there is none; any thread. Must not block. Null: log and metrics alone.
  std::function<void(v1::Audit)> done;
};

// The comparison of `rows` rows of `vocabulary` logits each, in float64. `pruned` and `unpruned`
// are of the same tokens. Sets Audit.skipped if a logit is not finite.
v1::Audit CompareRows(const std::vector<float>& pruned, const std::vector<float>& unpruned,
                      int64_t rows, int64_t vocabulary);

// All methods may be called from any thread; none waits.
class Auditor {
 public:
  // `engine` and `metrics` must outlive it. `has_thread` false: memory is made and readings are
  // compared on the threads that call Start and that deliver the engine's outputs.
  Auditor(EngineThread& engine, int32_t vocabulary, const AuditOptions& options,
          CallMetrics& metrics, bool has_thread);
  ~Auditor();  // ends the running comparison; audits that wait and that come later are skipped

  // True for each round(1 / share)-th call.
  bool Samples();
  // Skipped if kMaxWaiting others wait.
  void Start(const Audited& sequence);

  static constexpr size_t kMaxWaiting = 32;

 private:
  struct State;
  struct Reading;
  const std::shared_ptr<State> state_;  // shared with readings, which the engine holds
};

}  // namespace fox
