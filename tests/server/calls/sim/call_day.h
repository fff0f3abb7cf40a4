// CallDay: one seed is one simulated day of random clients over the real call layer and engine, in
// one thread with a simulated clock. Each thread that works for a call is an actor that the day
// lets act; while one actor is inside a call's format or transport, where no lock is held, others
// act, too: so a reader closes, a write returns, a request is aborted at every point.
// Deterministic: a seed that fails fails again. Phases: a load; then no new calls, and every call
// must end.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/request/step_observer.h"
#include "server/calls/call.h"
#include "tests/engine/sim/random.h"
#include "tests/fixtures/test_core.h"
#include "tests/server/calls/sim/call_report.h"
#include "tests/server/calls/sim/sim_environment.h"
#include "tests/server/calls/sim/sim_format.h"
#include "tests/server/calls/sim/sim_transport.h"

namespace fox::sim {

// One seed's load.
struct CallLoad {
  explicit CallLoad(Random& random) {
    roomy = random.Chance(0.4);
    options.max_num_seqs = static_cast<int32_t>(random.Int(1, 6));
    options.num_pages = random.Int(16, 128);
    options.max_model_len = 256;
    options.max_num_batched_tokens = static_cast<int32_t>(random.Int(32, 128));
    options.max_num_queued_reqs = roomy ? 100'000 : random.Int(4, 64);
    options.max_queue_seconds = 0;
    options.limits.max_calls = roomy ? 100'000 : random.Int(6, 40);
    options.limits.max_call_bytes = roomy ? int64_t{1} << 30 : random.Int(16 << 10, 64 << 10);
    options.limits.delivery_threads = static_cast<int>(random.Int(1, 3));
    clients = random.Int(1, 4);
    ids = random.Chance(0.5) ? random.Int(1, 6) : 0;
    interrupts = random.Chance(0.2) ? 0 : random.Unit() * 0.5;
    max_tokens = random.Int(1, 60);
    streams = random.Unit();
    slow = random.Chance(0.5) ? random.Unit() * 0.5 : 0;
    stopped = random.Chance(0.5) ? random.Unit() * 0.3 : 0;
    grammars = random.Chance(0.4) ? 0.6 : 0;
    deadlines = random.Chance(0.3) ? 0.2 : 0;
    closes = random.Chance(0.7) ? 0.02 : 0;
    aborts = random.Chance(0.5);
    wrong = random.Chance(0.5) ? 0.1 : 0;
  }

  TestCoreOptions options;
  bool roomy;  // no queue or budget is ever full
  int64_t clients, ids, max_tokens;
  double interrupts, streams, slow, stopped, grammars, deadlines, closes, wrong;
  bool aborts;
};

class CallDay final : public SimEnvironment, public StepObserver {
 public:
  explicit CallDay(const CallDayOptions& options)
      : options_(options), random_(options.seed, 0), load_(random_) {
    load_.options.observers = {this};
    load_.options.limits.has_threads = false;
    load_.options.on_clock = [this] { Interrupt(); };  // no lock is held there
    lane_acts_.resize(static_cast<size_t>(load_.options.limits.delivery_threads));
    core_ = std::make_unique<TestCore>(load_.options);
  }

  CallReport Run();

  // SimEnvironment.
  void Interrupt() override;
  void ReportViolation(const std::string& what) override;
  void Count(CallMark mark) override { ++report_.marks[mark]; }
  // StepObserver: between plan and result the engine's thread holds no lock.
  void AfterSubmit(const StepPlan&) override { Interrupt(); }

 private:
  enum class Reader : uint8_t { kFast, kSlow, kStopped };
  // A client's call, and the client's knowledge of it.
  struct Client {
    CallPlan plan;
    Reader reader = Reader::kFast;
    std::shared_ptr<SimTransport> transport;
    std::weak_ptr<Call> call;
    const SimFormat* format = nullptr;  // the call's, while there is one
    bool has_deadline = false;
    bool cut_in_write = false;  // the day cut the reader off, not its call
    absl::Status closed;        // the reason why the reader left; Ok: it has not
    std::set<size_t> aborted;   // prompts
  };
  using ClientPtr = std::shared_ptr<Client>;

  void Act();
  void StartCall();
  CallPlan MakePlan();
  bool RunPool(AdmissionPool& pool, int threads, int* acting);
  void RunGrammar();
  void RunEngine();
  void RunLane(size_t lane);
  void LetReaderAct();
  void LetReaderAct(const ClientPtr& client);
  void CloseReader(const ClientPtr& client, const absl::Status& reason);
  void AbortPrompt();
  void EndDay();
  bool RunAllActors(bool engine_works);
  void ForgetReleased();

  void CheckBudget();
  void CheckAnswer(const Client& client);
  std::string CheckSequence(const Client& client, size_t prompt, const std::string& text,
                            int finishes, int reason) const;
  void CheckFailure(const Client& client);
  bool MayFailWith(const Client& client, absl::StatusCode code) const;
  void CheckEnd(bool engine_works);

  void Print(const std::string& what) {
    Count(CallMark::kEvents);
    if (options_.print) {
      std::printf("%*s%lld %s\n", 2 * depth_, "", static_cast<long long>(report_.operation),
                  what.c_str());
    }
  }

  const CallDayOptions options_;
  CallReport report_;
  Random random_;
  CallLoad load_;
  int depth_ = 0;
  bool quiet_ = false;   // no actor interrupts any more
  bool ending_ = false;  // no new calls
  bool drained_ = false, executor_fails_ = false, hangs_ = false;
  int64_t next_id_ = 0;
  // The actors that act now.
  int admission_acts_ = 0, tokenizing_acts_ = 0, grammar_acts_ = 0;
  bool engine_acts_ = false;
  std::vector<bool> lane_acts_;
  std::vector<ClientPtr> open_;             // not released
  std::vector<std::weak_ptr<Call>> calls_;  // all of them
  std::unique_ptr<TestCore> core_;
};

CallReport SimulateCalls(const CallDayOptions& options);

// The seed, the operation, the violation, and the command that shows it.
std::string Describe(const CallDayOptions& options, const CallReport& report);

}  // namespace fox::sim
