// Trace: writes a running engine as Chrome trace events (`--trace FILE`). One row shows the
// engine's thread: submitting plans (on a CPU computing them, on a GPU enqueueing them) and
// collecting results. One row for each plan in flight shows its step. Requests are asynchronous
// events with their phases. There is no prompt and no token in a trace.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "engine/request/step_observer.h"
#include "engine/trace/trace_file.h"

namespace fox {

// Used by the engine's thread alone, once it runs.
class Trace : public StepObserver {
 public:
  explicit Trace(std::unique_ptr<TraceFile> file);

  void BeforeSubmit(const StepPlan& plan) override;
  void AfterSubmit(const StepPlan& plan) override;
  void BeforeCollect() override;
  void AfterCollect(const StepPlan& plan, const StepResult& result) override;
  void OnFirstToken(RequestId id) override;
  void OnFinish(const Request& request, const Finish& finish) override;

 private:
  struct InFlight {
    int64_t step;
    Seconds begin;
    int lane;
  };

  // A span [begin, end) of a row; `arguments`: the text of a JSON object.
  void AddSpan(int row, const std::string& name, Seconds begin, Seconds end,
               const std::string& arguments);
  // A phase of a request, and its begin ('b') or end ('e'). Phases nest.
  void AddPhase(RequestId id, const char* name, Seconds begin, Seconds end);
  void AddEdge(char kind, RequestId id, const char* name, Seconds time,
               const std::string& arguments);
  std::string Microseconds(Seconds time) const;
  int FreeLane() const;

  const std::unique_ptr<TraceFile> file_;
  const Seconds start_;
  int64_t steps_ = 0;
  Seconds collect_begin_ = 0;
  std::deque<InFlight> in_flight_;            // the oldest first
  std::map<RequestId, Seconds> first_token_;  // running requests only
};

}  // namespace fox
