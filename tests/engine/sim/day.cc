// Day: the clients' actions, and steps. day_checks.cc has the checks. Read day.h first.
#include "tests/engine/sim/day.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace fox::sim {
Day::Day(const Swarm& swarm, bool print)
    : swarm_(swarm),
      print_(print),
      ledger_(swarm.executor.limits),
      sampler_(swarm.executor.limits.vocab_size) {
  executor_ = std::make_unique<FakeExecutor>(swarm.executor);
  if (swarm.executor.limits.staging_buffers > 0) {
    store_ = std::make_unique<FakeStore>(*executor_, swarm.store_seed, swarm.store_faults,
                                         swarm.store_delays);
  }
  engine_ = std::make_unique<Engine>(swarm.engine, *executor_, std::vector<StepObserver*>{this},
                                     store_.get());
}

Day::~Day() = default;

void Day::Fail(const std::string& what) {
  if (ok()) violation_ = "step " + std::to_string(marks_[Mark::kSteps]) + ": " + what;
}

RequestId Day::StartedId() const {
  for (const auto& client : clients_) {
    if (group_started_[client->group]) return client->request().id;
  }
  return 0;
}

void Day::MakeNan(RequestId id) { executor_->options().nan_requests.insert(id); }

void Day::Submit(const std::vector<Request>& requests, absl::StatusCode invalid) {
  for (const Request& request : requests) executor_->Forget(request.id);
  marks_[Mark::kSubmitted] += static_cast<int64_t>(requests.size());
  const absl::Status status = engine_->Submit(requests, now_);
  if (print_) {
    std::printf("%.3f submit %llu x%zu: %zu tokens, at most %d: %s\n", now_,
                static_cast<unsigned long long>(requests.front().id), requests.size(),
                requests.front().prompt.size(), requests.front().stop.max_tokens,
                status.ToString().c_str());
  }
  if (status.code() != invalid && invalid != absl::StatusCode::kOk && !fatal()) {
    Fail("a wrong request was answered with " + status.ToString());
  } else if (!status.ok()) {
    marks_[Mark::kRefused] += static_cast<int64_t>(requests.size());
    if (absl::IsResourceExhausted(status)) ++refused_groups_;
    if (invalid == absl::StatusCode::kOk || fatal()) {
      CheckRefusal(requests, status);
    } else {
      ++marks_[Mark::kInvalid];
    }
  } else {
    if (engine_->stats().waiting > swarm_.engine.max_num_queued_reqs ||
        engine_->stats().queued_tokens > swarm_.engine.max_num_queued_tokens) {
      Fail("the queue is longer than it may be");
    }
    if (requests.size() > 1) ++marks_[Mark::kGroups];
    group_started_.push_back(false);
    displaced_in_group_.push_back(0);
    for (const Request& request : requests) Add(request, group_started_.size() - 1);
  }
}

void Day::Add(const Request& request, size_t group) {
  const auto id = static_cast<size_t>(request.id);
  if (id >= index_.size()) index_.resize(2 * id + 16, -1);
  if (id <= newest_) ++marks_[Mark::kIdAgain];
  newest_ = std::max(newest_, id);
  index_[id] = static_cast<int32_t>(clients_.size());
  if (executor_->options().max_lengths.size() > 200) executor_->options().max_lengths.clear();
  // The last token is never fed.
  executor_->options().max_lengths[request.id] =
      static_cast<int64_t>(request.prompt.size()) + std::max(1, request.stop.max_tokens) - 1;
  if (!request.cache_salt.empty()) executor_->options().salts[request.id] = request.cache_salt;
  auto client = std::make_unique<Client>(request, swarm_.engine, executor_->options());
  client->group = group;
  client->submitted = now_;
  client->heard_of_at = steps();
  if (request.log_tolerance == kNoMass) ++marks_[Mark::kPrunesNothing];
  clients_.push_back(std::move(client));
}

void Day::Cancel(size_t index, const absl::Status& status) {
  Client& client = *clients_[index];
  if (!std::exchange(client.cancelled, true)) {
    client.cancel_status = status;
    ++marks_[Mark::kCancelled];
  }
  if (print_) {
    std::printf("%.3f cancel %llu\n", now_, static_cast<unsigned long long>(client.request().id));
  }
  engine_->Cancel(client.request().id, client.cancel_status);
}

void Day::Acknowledge(size_t index, int64_t tokens, int64_t excess) {
  Client& client = *clients_[index];
  client.acknowledged += tokens;
  if (tokens > 0) {
    client.acknowledged_at = now_;
    client.full_since = kNever;  // room for one more at least
  }
  ++marks_[Mark::kAcknowledged];
  if (print_) {
    std::printf("%.3f acknowledge %llu +%lld\n", now_,
                static_cast<unsigned long long>(client.request().id),
                static_cast<long long>(tokens));
  }
  engine_->Acknowledge(client.request().id, tokens + excess);
}

void Day::AcknowledgeAll() {
  for (size_t i = 0; i < clients_.size(); ++i) {
    const Client& client = *clients_[i];
    if (client.request().flow_window > 0 && client.open() > 0) Acknowledge(i, client.open());
  }
}

void Day::FlushPrefixCache() {
  if (print_) std::printf("%.3f flush\n", now_);
  if (engine_->stats().snapshots > 0) ++marks_[Mark::kFlushes];
  engine_->FlushPrefixCache();
}

void Day::SavePrefixCache() {
  if (print_) std::printf("%.3f save\n", now_);
  engine_->SavePrefixCache();
}

void Day::Step() {
  ++marks_[Mark::kSteps];
  if (store_ != nullptr) store_->Advance();
  const bool work = engine_->HasWork() || engine_->NextDeadline() <= now_;
  const int64_t runs = executor_->runs();
  planned_.clear();
  const std::vector<RequestOutput> outputs = engine_->Step(now_);
  const bool ran = executor_->runs() != runs;
  if (!work && (!outputs.empty() || ran)) Fail("HasWork missed work");
  for (const RequestOutput& output : outputs) Check(output);
  if (!executor_->violation().empty()) return Fail(executor_->violation());
  engine_->Check();
  if (engine_->fatal().ok()) {
    CheckAfterStep();
  } else if (swarm_.executor.fail_at_run < 0) {
    Fail("fatal without a fault: " + engine_->fatal().ToString());
  } else {
    ++marks_[swarm_.executor.fail_late ? Mark::kLateFaults : Mark::kFaults];
    if (!clients_.empty()) Fail("a request outlived the engine");
  }
  if (ran) {
    now_ +=
        swarm_.step_seconds + swarm_.token_seconds * static_cast<double>(executor_->last_tokens());
  }
}

void Day::AfterSubmit(const StepPlan& plan) {
  if (print_) std::printf("%.3f plan: %s\n", now_, plan.DebugString().c_str());
  ledger_.Submit(plan);
  CheckPromise();
  marks_[Mark::kSnapshots] += static_cast<int64_t>(plan.snapshots.size());
  marks_[Mark::kSnapshotsDropped] += static_cast<int64_t>(plan.drop_snapshots.size());
  marks_[Mark::kCachedStarts] += static_cast<int64_t>(plan.starts.size());
  marks_[Mark::kSaves] += static_cast<int64_t>(plan.saves.size());
  marks_[Mark::kLoads] += static_cast<int64_t>(plan.loads.size());
  for (const auto* transfers : {&plan.saves, &plan.loads}) {
    for (const SlotTransfer& transfer : *transfers) {
      if (store_->Owns(transfer.buffer)) Fail("a plan uses a buffer of the store");
    }
  }
  bool slow = false, others = false;
  for (const PlannedSequence& sequence : plan.sequences) {
    const int64_t index = IndexOf(sequence.id);
    if (index < 0) continue;
    Client& client = *clients_[static_cast<size_t>(index)];
    ++planned_[client.request().client];
    if (!std::exchange(client.ran, true)) CountStart(client);
    group_started_[client.group] = true;
    (client.was_full ? slow : others) = true;
  }
  if (slow && others) ++marks_[Mark::kBestEffort];
}

void Day::AfterCollect(const StepPlan&, const StepResult& result) {
  ledger_.Collect(result);
  CheckPromise();
}

void Day::CountStart(const Client& starts) {
  if (!swarm_.engine.priority_scheduling) return;
  bool first = false, later = false;
  for (const auto& other : clients_) {
    if (other->ran) continue;
    const bool urgent = other->request().priority < starts.request().priority;
    if (urgent) later = true;
    if (!urgent && other->request().priority != starts.request().priority &&
        other->submitted < starts.submitted) {
      first = true;
    }
  }
  if (first) ++marks_[Mark::kUrgentFirst];
  if (later) ++marks_[Mark::kUrgentLater];
}

void Day::OnFinish(const Request& request, const Finish&) {
  ++heard_ends_;
  if (IndexOf(request.id) < 0) Fail("the observer heard of an end that is none");
}

const Marks& Day::CountMarks() {
  marks_[Mark::kPagesTaken] = executor_->pages().taken;
  marks_[Mark::kPagesShared] = executor_->pages().shared;
  marks_[Mark::kPagesEvicted] = executor_->pages().evicted;
  marks_[Mark::kPagesReleased] = executor_->pages().released;
  marks_[Mark::kPreemptions] = engine_->stats().preemptions;
  marks_[Mark::kSampled] = executor_->samples();
  marks_[Mark::kFedSamples] = executor_->fed_samples();
  marks_[Mark::kProcessedSamples] = executor_->processed_samples();
  marks_[Mark::kRestoredStates] = executor_->restored_states();
  marks_[Mark::kReturns] = executor_->returns();
  if (store_ != nullptr) marks_[Mark::kStoreFaults] = store_->stats().errors;
  marks_.CountEvents();
  return marks_;
}

}  // namespace fox::sim
