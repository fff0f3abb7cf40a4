// Day: the checks of streams, ends, times, pages and totals. Read day.h first.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "engine/schedule/policy.h"
#include "tests/engine/sim/day.h"

namespace fox::sim {

void Day::CheckRefusal(const std::vector<Request>& requests, const absl::Status& status) {
  int64_t tokens = 0;
  for (const Request& request : requests) tokens += static_cast<int64_t>(request.prompt.size());
  const RequestId id = requests.front().id;
  if (fatal()) {
    Expect(absl::IsUnavailable(status), "not refused by an engine that stopped", id);
  } else if (absl::IsOutOfRange(status)) {
    const int64_t pages = swarm_.executor.limits.lists_per_slot *
                          PagesFor(static_cast<int64_t>(requests.front().prompt.size()));
    const bool large =
        static_cast<int64_t>(requests.size()) > swarm_.engine.max_num_queued_reqs ||
        tokens > swarm_.engine.max_num_queued_tokens ||
        (swarm_.engine.acp == AcpMode::kOff && pages > swarm_.executor.limits.num_pages);
    Expect(large, "out of range for no reason", id);
  } else {
    if (!absl::IsResourceExhausted(status)) Fail("refused for no reason: " + status.ToString());
    Expect(!clients_.empty(), "refused by an engine with nothing to do", id);
  }
}

void Day::Check(const RequestOutput& output) {
  const int64_t index = IndexOf(output.id);
  if (index < 0) return Fail("an output after the end");
  Client& client = *clients_[static_cast<size_t>(index)];
  CheckTokens(output, &client);
  if (output.windows) CheckWindows(*output.windows, client);
  if (client.request().flow_window > 0) {
    Expect(client.open() <= client.request().flow_window, "beyond the flow window", output.id);
    if (client.full() && client.full_since == kNever) {
      client.was_full = true;
      client.full_since = now_;
      client.full_steps = 0;
      ++marks_[Mark::kPauses];
    }
  }
  if (!output.finish) return;
  CheckFinish(output, &client);
  trace_ = Mix(trace_, Mix(output.id, static_cast<uint64_t>(output.finish->status.code())));
  index_[static_cast<size_t>(output.id)] = -1;
  executor_->options().salts.erase(output.id);
  if (static_cast<size_t>(index) + 1 < clients_.size()) {
    clients_[static_cast<size_t>(index)] = std::move(clients_.back());
    index_[static_cast<size_t>(clients_[static_cast<size_t>(index)]->request().id)] =
        static_cast<int32_t>(index);
  }
  clients_.pop_back();
  ended_ = output.id;
}

void Day::CheckTokens(const RequestOutput& output, Client* client) {
  const auto check = [&](const SampledToken& token, Reference::Kind kind, bool logprobs) {
    SampledToken expected;
    if (client->reference.Next(sampler_, &expected) != kind) return Fail("an odd token");
    Expect(token.id == expected.id, "wrong token", output.id);
    if (!logprobs) return;
    const bool same = std::equal(
        token.top.begin(), token.top.end(), expected.top.begin(), expected.top.end(),
        [](const auto& a, const auto& b) { return a.id == b.id && a.logprob == b.logprob; });
    Expect(same && token.logprob == expected.logprob && token.rank == expected.rank,
           "wrong log-probability", output.id);
  };
  if (!output.prompt_logprobs.empty() || !output.tokens.empty()) {
    client->heard_of_at = steps();
  }
  const SamplingParams& sampling = client->request().sampling;
  for (const SampledToken& token : output.prompt_logprobs) {
    check(token, Reference::Kind::kScore, true);
    ++client->scored;
    ++marks_[Mark::kScores];
  }
  const bool logprobs = sampling.logprobs >= 0 || !sampling.logprob_token_ids.empty();
  for (const SampledToken& token : output.tokens) {
    check(token, Reference::Kind::kToken, logprobs);
    ++client->delivered;
    client->tokens.push_back(token.id);
    ++marks_[Mark::kTokens];
    trace_ = Mix(trace_, Mix(output.id, static_cast<uint64_t>(token.id)));
    if (print_) {
      std::printf("%.3f token %llu: %d\n", now_, static_cast<unsigned long long>(output.id),
                  token.id);
    }
  }
}

void Day::CheckWindows(const KeptWindows& windows, const Client& client) {
  const RequestId id = client.request().id;
  ++marks_[Mark::kWindows];
  Expect(client.request().report_windows, "windows were not asked for", id);
  Expect(windows.first_pages == FirstPages(executor_->options(), client.request(), client.tokens,
                                           windows.tokens, client.reference.log_tolerance()),
         "wrong windows", id);
}

void Day::CheckFinish(const RequestOutput& output, Client* client) {
  const RequestId id = output.id;
  const Finish& finish = *output.finish;
  ++marks_[Mark::kEnded];
  if (print_) {
    std::printf("%.3f end %llu: %s after %lld tokens\n", now_, static_cast<unsigned long long>(id),
                finish.status.ToString().c_str(), static_cast<long long>(client->delivered));
  }
  const RequestStats& stats = finish.stats;
  Expect(stats.completion_tokens == client->delivered &&
             stats.prompt_tokens == static_cast<int64_t>(client->request().prompt.size()) &&
             stats.arrival == client->submitted && stats.finished <= now_,
         "wrong statistics", id);
  const int64_t cached = stats.cached_tokens;
  Expect(cached == 0 || (swarm_.executor.limits.snapshot_slots > 0 && cached % kPageTokens == 0 &&
                         cached < stats.prompt_tokens && !client->request().bypass_prefix_cache),
         "tokens that cannot be cached", id);
  const bool in_order = stats.first_token == 0 || stats.first_token >= stats.first_scheduled;
  Expect(in_order && (stats.first_scheduled == 0 || stats.first_scheduled >= stats.arrival),
         "times in no order", id);
  ended_preemptions_ += stats.preemptions;
  Expect(stats.acp.max_log_evicted_mass <= client->reference.log_tolerance() ||
             stats.acp.max_log_evicted_mass == kNoMass,
         "evicted more than it allows", id);
  CheckStatus(output, client);
  CheckCertificate(finish, *client);
}

// The certificate covers the largest mass evicted from the request's tokens, in all slots,
// including tokens that another request computed.
void Day::CheckCertificate(const Finish& finish, const Client& client) {
  const bool ended_well = finish.status.ok() && finish.reason != FinishReason::kAbort;
  // It is not known here how much of a prompt was computed. If the pool is too small, the reference
  // is at its end by now.
  if (!ended_well && (client.delivered == 0 || absl::IsOutOfRange(finish.status))) return;
  Expect(finish.stats.acp.max_log_evicted_mass == client.reference.max_log_evicted_mass(),
         "wrong certificate", client.request().id);
}

void Day::CheckStatus(const RequestOutput& output, Client* client) {
  const RequestId id = output.id;
  const Finish& finish = *output.finish;
  const absl::Status& status = finish.status;
  const bool waited = finish.stats.acp.pages_allocated == 0;
  const Request& request = client->request();
  if (absl::IsResourceExhausted(status)) {  // before it was cancelled, if it was
    Expect(waited && !group_started_[client->group], "displaced after its start", id);
    ++marks_[Mark::kDisplaced];
    if (displaced_in_group_[client->group]++ == 0) ++displaced_groups_;
  } else if (client->cancelled) {
    if (status.ok() && client->cancel_status.ok()) {
      Expect(finish.reason == FinishReason::kAbort, "abort", id);
    } else {
      // The executor may fail in the same step only after cancellations were delivered.
      Expect(status == client->cancel_status, "cancel status", id);
    }
    ++marks_[finish.stats.preemptions > 0 ? Mark::kCancelledPreempted
             : waited                     ? Mark::kCancelledWaiting
                                          : Mark::kCancelledRunning];
  } else if (status.ok()) {
    CheckGoodEnd(finish, client);
  } else if (absl::IsDeadlineExceeded(status)) {
    // A request that has not started may be given up for a deadline that it could not meet.
    const bool late = now_ >= request.deadline ||
                      (!group_started_[client->group] && now_ >= request.queue_deadline);
    Expect(late || (waited && request.deadline < kNever), "expired too early", id);
    ++marks_[late ? Mark::kExpired : Mark::kMissesDeadline];
  } else if (absl::IsInternal(status)) {
    SampledToken token;
    Expect(client->reference.Next(sampler_, &token) == Reference::Kind::kFailure,
           "failed for no reason", id);
    ++marks_[Mark::kNumerical];
  } else if (absl::IsAborted(status)) {
    const bool stalled = status.message() == "the reader has stalled";
    Expect(request.flow_window > 0, "aborted without a pause", id);
    Expect(!stalled || (swarm_.engine.stall_timeout > 0 && client->delivered > 0 &&
                        now_ >= client->heard_at + swarm_.engine.stall_timeout),
           "a reader was given up too early", id);
    ++marks_[stalled ? Mark::kStalled : Mark::kTooManyStalled];
  } else if (absl::IsOutOfRange(status)) {
    client->reference.Drain(sampler_);
    Expect(client->reference.exhausts_pool() || swarm_.executor.understated_pages > 0,
           "the pool would do", id);
    ++marks_[Mark::kDoesNotFit];
  } else {
    Expect(absl::IsUnavailable(status) && fatal(), "odd status", id);
  }
}

void Day::CheckGoodEnd(const Finish& finish, Client* client) {
  Reference& reference = client->reference;
  const RequestId id = client->request().id;
  SampledToken token;
  Expect(reference.Next(sampler_, &token) == Reference::Kind::kEnd, "ended too early", id);
  Expect(!reference.exhausts_pool(), "should have failed", id);
  Expect(finish.reason == reference.reason(), "wrong reason", id);
  Expect(finish.stop_token_id == reference.stop_token_id(), "wrong stop token", id);
  Expect(finish.eos == reference.eos(), "wrong eos", id);
  CheckPages(*client, finish);
  if (swarm_.turns > 0) {
    Request& request = conversations_.emplace_back(client->request());
    request.prompt.insert(request.prompt.end(), client->tokens.begin(), client->tokens.end());
    if (conversations_.size() > 4) conversations_.pop_front();
  }
  ++marks_[finish.reason == FinishReason::kStop ? Mark::kStopped : Mark::kFinished];
}

// Surplus work is in no statistics. Each preemption computes the tokens so far again.
void Day::CheckPages(const Client& client, const Finish& finish) {
  const bool unread = finish.reason == FinishReason::kLength && client.delivered > 0;
  const int64_t fed =
      static_cast<int64_t>(client.request().prompt.size()) + client.delivered - (unread ? 1 : 0);
  const int64_t once = swarm_.executor.limits.lists_per_slot * PagesFor(fed);
  const int64_t pages = finish.stats.acp.pages_allocated;
  const bool right = pages >= once && pages <= (finish.stats.preemptions + 1) * once;
  Expect(right, "wrong number of pages", client.request().id);
}

// The pages that the ledger promises are there, whichever slots the next plan releases: it may
// count pages as held by a slot that are already free, but no page that another slot shares.
void Day::CheckPromise() {
  const ExecutorLimits& limits = swarm_.executor.limits;
  int64_t promised = ledger_.free();
  for (int32_t slot = 0; slot < limits.slots() + limits.snapshot_slots; ++slot) {
    promised += std::max<int64_t>(0, ledger_.held(slot) - executor_->sole_pages(slot));
  }
  if (promised > executor_->free_pages()) {
    Fail("the ledger promises " + std::to_string(promised) + " pages of " +
         std::to_string(executor_->free_pages()));
  }
}

void Day::CheckAfterStep() {
  executor_->Audit();
  if (!executor_->violation().empty()) return Fail(executor_->violation());
  const EngineStats& stats = engine_->stats();
  const auto live = static_cast<int64_t>(clients_.size());
  if (stats.running + stats.waiting + stats.paused != live) Fail("requests are miscounted");
  if (stats.running > swarm_.executor.limits.max_num_seqs) Fail("more run than may");
  if (stats.paused > swarm_.engine.max_paused_reqs) Fail("more are paused than may be");
  // Finished sequences leave their slots one step later.
  if (executor_->occupied_slots() < stats.running) Fail("a running sequence without a slot");
  if (stats.free_pages > executor_->collected_free_pages()) Fail("free pages are overstated");
  if (stats.running + stats.paused > executor_->occupied_slots()) ++marks_[Mark::kPreemptedPaused];
  if (live == 0 && !engine_->HasWork() && executor_->occupied_slots() > 0) {
    Fail("a slot has no owner");
  }
  if (!engine_->HasWork() && stats.snapshots != executor_->snapshots()) {
    Fail("snapshots are miscounted");
  }
  if (!engine_->HasWork() && executor_->in_flight() > 0) Fail("asleep with a plan in flight");
  CheckSlots();
  CheckTimes();
}

// Applies if only running slots are short and there are no more clients than slots. A waiting
// client is due a slot after kSlotTurn, and the sequences that run then may yield theirs after
// another kSlotTurn. From then on each step gives one slot to a client that is due one, of which
// there are fewer than slots, or to a rescued request. At most one rescued request goes before each
// client, and keeps its slot for kSlotTurn. A long pause between two steps counts as one kSlotTurn,
// because the rules apply once a step.
void Day::CheckSlots() {
  if (!swarm_.only_slots || marks_[Mark::kFloods] > 0) return;
  constexpr Seconds kTurn = kSlotTurn;
  const int64_t slots = swarm_.executor.limits.max_num_seqs;
  const Seconds passed = std::min(now_ - std::exchange(checked_slots_, now_), kTurn);
  std::map<uint64_t, SlotWait> waits;
  for (const auto& client : clients_) {
    const uint64_t id = client->request().client;
    const auto known = slot_waits_.find(id);
    const bool waited = planned_.count(id) == 0 && known != slot_waits_.end();
    waits[id] = waited ? known->second : SlotWait();
  }
  slot_waits_ = std::move(waits);
  const bool some_has_two =
      std::any_of(planned_.begin(), planned_.end(), [](const auto& p) { return p.second > 1; });
  if (!some_has_two || static_cast<int64_t>(slot_waits_.size()) > slots) return;
  for (auto& [id, wait] : slot_waits_) {
    wait.time += passed;
    if (wait.time > kTurn) ++marks_[Mark::kDueSlots];
    if (wait.time <= static_cast<double>(2 + slots) * kTurn) continue;
    if (++wait.steps > slots + 2) Fail("no running slot for client " + std::to_string(id));
  }
}

void Day::CheckTimes() {
  const Seconds patience = swarm_.engine.stall_timeout;
  for (const auto& entry : clients_) {
    Client& client = *entry;
    const Request& request = client.request();
    if (client.cancelled) Expect(false, "a cancelled request lives on", request.id);
    if (now_ >= request.deadline) Expect(false, "a deadline was ignored", request.id);
    if (now_ >= request.queue_deadline && !group_started_[client.group]) {
      Expect(false, "a queue deadline was ignored", request.id);
    }
    if (request.flow_window == 0) continue;
    if (client.acknowledged_at > client.heard_at) client.heard_at = now_;
    // Plans in flight may have to come in first.
    if (patience > 0 && now_ >= client.full_since + patience && ++client.full_steps > 2) {
      Expect(false, "a stalled reader was waited for", request.id);
    }
  }
}

void Day::CheckTotals() {
  const EngineStats& stats = engine_->stats();
  const int64_t ends = stats.finished + stats.failed + stats.cancelled + stats.expired +
                       stats.aborted + marks_[Mark::kDisplaced];
  if (ends != marks_[Mark::kEnded] || heard_ends_ != ends) Fail("ends are miscounted");
  if (stats.rejected != refused_groups_ + displaced_groups_) Fail("refusals are miscounted");
  if (stats.generated_tokens != marks_[Mark::kTokens]) Fail("tokens are miscounted");
  if (stats.preemptions != ended_preemptions_) Fail("preemptions are miscounted");
  if (stats.free_pages != swarm_.executor.limits.num_pages &&
      swarm_.executor.understated_pages == 0) {
    Fail("the engine believes that pages are gone");
  }
  if (stats.unpruned_pages != 0 || stats.queued_tokens != 0) Fail("a gauge is not at rest");
}

void Day::Close(bool cancel_all) {
  if (!fatal()) EndAll(cancel_all);
  if (!ok() || fatal()) return;
  FlushPrefixCache();
  const int plans = 2 + swarm_.executor.limits.depth;
  for (int i = 0; i < plans && engine_->HasWork() && ok(); ++i) Step();
  if (!ok() || fatal()) return;  // the last plan may fail, too
  if (engine_->HasWork()) Fail("work without requests");
  if (executor_->free_pages() != swarm_.executor.limits.num_pages) Fail("pages leaked");
  if (executor_->occupied_slots() != 0 || executor_->snapshots() != 0) Fail("slots leaked");
  CheckTotals();
  if (print_) std::printf("trace %016llx\n", static_cast<unsigned long long>(trace_));
}

// From now on readers are fast and no client comes.
void Day::EndAll(bool cancel_all) {
  if (cancel_all) {
    ++marks_[Mark::kCancelledAll];
    for (size_t i = 0; i < clients_.size(); ++i) Cancel(i, absl::CancelledError("all left"));
    if (swarm_.executor.limits.snapshot_slots > 0) {
      Step();  // an aborted one may leave a snapshot
      FlushPrefixCache();
    }
    for (int i = 0; i < 2 && ok() && (engine_->HasWork() || !clients_.empty()); ++i) Step();
    if (ok() && !fatal() && executor_->free_pages() != swarm_.executor.limits.num_pages) {
      Fail("pages of cancelled requests are not free after two steps");
    }
    return;
  }
  int64_t bound = 1000;
  for (const auto& client : clients_) {
    const Request& request = client->request();
    bound += 20 * (static_cast<int64_t>(request.prompt.size()) + request.stop.max_tokens);
  }
  while (!clients_.empty() && ok() && !fatal()) {
    if (--bound < 0) return Fail("starved");
    AcknowledgeAll();
    if (!engine_->HasWork() && engine_->NextDeadline() == kNever) return Fail("asleep");
    now_ += 0.01;
    Step();
  }
}

}  // namespace fox::sim
