// Day: clients over an Engine and a FakeExecutor, checked after every step: each stream against its
// Reference, each end against its possible causes, the pool against its audit, times against
// deadlines. The caller decides on the clients' actions and their times, at random (simulation.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/schedule/page_budget.h"
#include "tests/engine/sim/fake_executor.h"
#include "tests/engine/sim/fake_store.h"
#include "tests/engine/sim/marks.h"
#include "tests/engine/sim/reference_model.h"
#include "tests/engine/sim/swarm.h"

namespace fox::sim {

// One request as its client sees it.
struct Client {
  Client(Request request, const EngineOptions& engine, const FakeOptions& executor)
      : reference(std::move(request), engine, executor) {}
  const Request& request() const { return reference.request(); }
  int64_t open() const { return delivered - acknowledged; }
  bool full() const { return request().flow_window > 0 && open() >= request().flow_window; }

  Reference reference;
  size_t group = 0;
  std::vector<int32_t> tokens;  // delivered
  int64_t delivered = 0, scored = 0, acknowledged = 0;
  bool cancelled = false, was_full = false;
  absl::Status cancel_status;
  Seconds submitted = 0;
  Seconds acknowledged_at = -kNever;  // last,
  Seconds heard_at = -kNever;         // and the step that heard it
  Seconds full_since = kNever;
  int64_t full_steps = 0;
  int64_t heard_of_at = 0;  // the step of its last token, or of its submission
  bool ran = false;
};

class Day : private StepObserver {
 public:
  // print: every event, to stdout.
  explicit Day(const Swarm& swarm, bool print = false);
  ~Day() override;
  Day(const Day&) = delete;
  Day& operator=(const Day&) = delete;

  // Requests that belong together, all or none; `invalid`: they must be refused with that code.
  void Submit(const std::vector<Request>& requests,
              absl::StatusCode invalid = absl::StatusCode::kOk);
  // `client`: an index in clients().
  void Cancel(size_t client, const absl::Status& status);
  void Acknowledge(size_t client, int64_t tokens, int64_t excess = 0);
  void Step();
  void AcknowledgeAll();
  void FlushPrefixCache();
  void SavePrefixCache();
  // Lets time pass.
  void Wait(Seconds seconds) { now_ += seconds; }
  // Faults and impatience are over: everything must end, and the pool must be full then.
  void Close(bool cancel_all = false);

  const Swarm& swarm() const { return swarm_; }
  Seconds now() const { return now_; }
  int64_t steps() const { return marks_[Mark::kSteps]; }
  const std::vector<std::unique_ptr<Client>>& clients() const { return clients_; }
  bool fatal() const { return !engine_->fatal().ok(); }
  bool idle() const { return !engine_->HasWork() && engine_->NextDeadline() == kNever; }
  RequestId NewId() { return next_id_++; }
  // The id that ended last, if it is free now; 0: there is none.
  RequestId free_id() const { return IndexOf(ended_) < 0 ? ended_ : 0; }
  RequestId StartedId() const;  // of a request that has started; 0: there is none
  void MakeNan(RequestId id);
  // Requests that ended well lately, with their answers appended to their prompts.
  const std::deque<Request>& conversations() const { return conversations_; }
  // The first violation; empty: none.
  const std::string& violation() const { return violation_; }
  bool ok() const { return violation_.empty(); }
  void Fail(const std::string& what);
  uint64_t trace() const { return trace_; }  // hash of everything delivered
  void Count(Mark mark) { ++marks_[mark]; }
  const Marks& CountMarks();

 private:
  // StepObserver:
  void AfterSubmit(const StepPlan& plan) override;
  void AfterCollect(const StepPlan& plan, const StepResult& result) override;
  void OnFinish(const Request& request, const Finish& finish) override;

  void Expect(bool condition, const char* what, RequestId id) {
    if (!condition) Fail(std::string(what) + ", request " + std::to_string(id));
  }
  int64_t IndexOf(RequestId id) const {
    return id < index_.size() ? index_[static_cast<size_t>(id)] : -1;
  }
  void Add(const Request& request, size_t group);
  void CountStart(const Client& starts);
  void CheckRefusal(const std::vector<Request>& requests, const absl::Status& status);
  void Check(const RequestOutput& output);
  void CheckTokens(const RequestOutput& output, Client* client);
  void CheckWindows(const KeptWindows& windows, const Client& client);
  void CheckFinish(const RequestOutput& output, Client* client);
  void CheckCertificate(const Finish& finish, const Client& client);
  void CheckStatus(const RequestOutput& output, Client* client);
  void CheckGoodEnd(const Finish& finish, Client* client);
  void CheckPages(const Client& client, const Finish& finish);
  void CheckPromise();
  void CheckAfterStep();
  void CheckSlots();
  void CheckTimes();
  void CheckTotals();
  void EndAll(bool cancel_all);

  const Swarm swarm_;
  const bool print_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<FakeStore> store_;  // null: none
  std::unique_ptr<Engine> engine_;
  PageLedger ledger_;                             // fed with the engine's plans
  Sampler sampler_;                               // the references'
  std::vector<std::unique_ptr<Client>> clients_;  // without clients that have ended
  std::vector<int32_t> index_;                    // in clients_, by id; -1: none
  std::vector<bool> group_started_;
  std::deque<Request> conversations_;
  RequestId next_id_ = 1;
  RequestId ended_ = 0;  // the last to end
  size_t newest_ = 0;    // id
  Seconds now_ = 0;
  int64_t heard_ends_ = 0;  // by the observer
  int64_t displaced_groups_ = 0, refused_groups_ = 0;
  std::vector<size_t> displaced_in_group_;
  // By Request::client.
  std::map<uint64_t, int64_t> planned_;  // sequences in the plan that this step submitted
  struct SlotWait {
    Seconds time = 0;   // since it had a sequence in a plan
    int64_t steps = 0;  // in which it could have had one, after all that may come before it
  };
  std::map<uint64_t, SlotWait> slot_waits_;
  Seconds checked_slots_ = 0;
  int64_t ended_preemptions_ = 0;
  Marks marks_;
  uint64_t trace_ = 0;
  std::string violation_;
};

}  // namespace fox::sim
