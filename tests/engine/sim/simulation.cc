// The simulated day. Read simulation.h first.
#include "tests/engine/sim/simulation.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "engine/engine.h"
#include "tests/engine/sim/reference_model.h"
#include "tests/engine/sim/swarm.h"

namespace fox::sim {
namespace {

// One request as its client sees it.
struct Client {
  Request request;
  Expected expected;
  size_t delivered = 0;
  size_t scored = 0;
  int64_t acknowledged = 0;
  bool cancelled = false;
  absl::Status cancel_status;
  bool was_paused = false;
};

class Day {
 public:
  Day(uint64_t seed, Bugs bugs, bool print)
      : random_(seed), swarm_(MakeSwarm(random_)), bugs_(bugs), print_(print) {
    swarm_.executor.bug = bugs.executor;
    if (bugs.executor != ExecutorBug::kNone || bugs.stream != StreamBug::kNone) {
      swarm_.executor.fail_at_run = -1;
    }
    executor_ = std::make_unique<FakeExecutor>(swarm_.executor);
    if (bugs.stream == StreamBug::kOverBudget) {
      executor_->options().limits.max_num_batched_tokens += 1;
    }
    engine_ = std::make_unique<Engine>(swarm_.engine, *executor_);
    executor_->options().limits = swarm_.executor.limits;
  }

  Report Run(int64_t operations) {
    while (marks_.operations < operations && ok() && engine_->fatal().ok()) Operate();
    if (ok() && !engine_->fatal().ok()) Submit();  // must be refused
    if (ok()) FinishAll();
    marks_.evictions = executor_->evictions();
    marks_.preemptions = engine_->stats().preemptions;
    marks_.tokens = engine_->stats().generated_tokens;
    marks_.sampled = executor_->samples();
    marks_.fed_samples = executor_->fed_samples();
    marks_.processed_samples = executor_->processed_samples();
    marks_.restored_states = executor_->restored_states();
    marks_.returns = executor_->returns();
    return {violation_, trace_, marks_};
  }

 private:
  bool ok() const { return violation_.empty(); }
  void Violate(const std::string& what) {
    if (ok()) violation_ = "operation " + std::to_string(marks_.operations) + ": " + what;
  }
  void Expect(bool condition, const char* what, RequestId id) {
    if (!condition) Violate(std::string(what) + ", request " + std::to_string(id));
  }

  void Operate();
  Request MakeRequest();
  void Submit();
  void CancelOne();
  void AcknowledgeOne(bool all);
  void Step();
  void Plant(std::vector<RequestOutput>* outputs);
  void Check(const RequestOutput& output);
  void CheckFinish(const Client& client, const RequestOutput& output);
  void CheckPages(const Client& client, const Finish& finish);
  void CheckAfterStep();
  void FinishAll();
  Client* Pick();

  Random random_;
  Swarm swarm_;
  Bugs bugs_;
  bool print_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  std::map<RequestId, Client> clients_;
  RequestId next_id_ = 1;
  RequestId ended_ = 0;  // the last to end
  Seconds now_ = 0;
  int64_t seen_preemptions_ = 0;
  bool strike_ = false;
  bool preempted_since_ = false;
  Marks marks_;
  uint64_t trace_ = 0;
  std::string violation_;
};

void Day::Operate() {
  const double total = swarm_.submit + swarm_.cancel + swarm_.acknowledge + swarm_.step;
  double choice = random_.Unit() * total;
  ++marks_.operations;
  now_ += swarm_.tick * random_.Unit();
  if ((choice -= swarm_.submit) < 0) {
    Submit();
  } else if ((choice -= swarm_.cancel) < 0) {
    CancelOne();
  } else if ((choice -= swarm_.acknowledge) < 0) {
    AcknowledgeOne(false);
  } else {
    Step();
  }
}

Request Day::MakeRequest() {
  const ExecutorLimits& limits = swarm_.executor.limits;
  Request request;
  // Now and then an id comes again, maybe while the executor still works for its first owner.
  const bool again = ended_ > 0 && clients_.count(ended_) == 0 && random_.Chance(0.1);
  request.id = again ? ended_ : next_id_++;
  executor_->Forget(request.id);
  const int64_t longest = random_.Chance(0.1) ? swarm_.long_prompt : swarm_.short_prompt;
  const int64_t length = random_.Int(1, longest);
  for (int64_t i = 0; i < length; ++i) {
    request.prompt.push_back(static_cast<int32_t>(random_.Int(0, limits.vocab_size - 1)));
  }
  SamplingParams& sampling = request.sampling;
  sampling.temperature = random_.Chance(swarm_.sampled) ? 1.0f : 0.0f;
  sampling.seed = static_cast<uint64_t>(random_.Int(0, 1 << 30));
  if (random_.Chance(0.3)) sampling.top_k = 5;
  if (random_.Chance(swarm_.scored)) {
    sampling.prompt_logprobs = static_cast<int32_t>(random_.Int(0, 3));
    sampling.logprobs = static_cast<int32_t>(random_.Int(-1, 3));
  }
  if (random_.Chance(swarm_.penalties)) {
    if (random_.Chance(0.7)) sampling.repetition_penalty = 2.0f;
    if (random_.Chance(0.7)) sampling.presence_penalty = 0.5f;
    if (random_.Chance(0.7)) sampling.frequency_penalty = 0.25f;
  }
  if (random_.Chance(swarm_.biased)) {
    if (random_.Chance(0.5)) sampling.logit_bias = {{3, 2.0f}};
    if (random_.Chance(0.5)) sampling.allowed_token_ids = {0, 3, 4, 5};
    if (random_.Chance(0.5)) sampling.logprob_token_ids = {6};
  }
  request.stop.max_tokens = static_cast<int32_t>(random_.Int(0, swarm_.max_tokens));
  if (random_.Chance(0.3)) {
    request.stop.min_tokens = static_cast<int32_t>(random_.Int(0, request.stop.max_tokens));
  }
  if (random_.Chance(0.3)) request.stop.stop_token_ids = {1};
  request.stop.ignore_eos = random_.Chance(0.3);
  request.priority = static_cast<int32_t>(random_.Int(0, swarm_.priorities - 1));
  request.client = static_cast<uint64_t>(random_.Int(0, swarm_.clients - 1));
  if (random_.Chance(swarm_.deadlines)) request.deadline = now_ + 20 * swarm_.tick * random_.Unit();
  if (random_.Chance(swarm_.deadlines)) {
    request.queue_deadline = now_ + 5 * swarm_.tick * random_.Unit();
  }
  if (random_.Chance(swarm_.windows)) request.flow_window = static_cast<int32_t>(random_.Int(1, 6));
  return request;
}

void Day::Submit() {
  Client client;
  client.request = MakeRequest();
  const RequestId id = client.request.id;
  if (random_.Chance(swarm_.nan)) {
    swarm_.executor.nan_requests.insert(id);
    executor_->options().nan_requests.insert(id);
  }
  Request sent = client.request;
  if (bugs_.stream == StreamBug::kIgnoreDeadline) sent.deadline = sent.queue_deadline = kNever;
  if (bugs_.stream == StreamBug::kIgnoreWindow) sent.flow_window = 0;
  if (bugs_.stream == StreamBug::kWrongSeed) ++sent.sampling.seed;
  const absl::Status status = engine_->Submit(std::move(sent), now_);
  ++marks_.submitted;
  if (!status.ok()) {
    ++marks_.rejected;
    const bool full = absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
    Expect(full, "refused for no reason", id);
    Expect(!absl::IsUnavailable(status) || !engine_->fatal().ok(), "unavailable", id);
    return;
  }
  // The last token is never fed.
  executor_->options().max_lengths[id] = static_cast<int64_t>(client.request.prompt.size()) +
                                         std::max<int64_t>(1, client.request.stop.max_tokens) - 1;
  client.expected = RunReference(client.request, swarm_.engine, swarm_.executor);
  clients_.emplace(id, std::move(client));
}

Client* Day::Pick() {
  if (clients_.empty()) return nullptr;
  auto it = clients_.begin();
  std::advance(it, random_.Int(0, static_cast<int64_t>(clients_.size()) - 1));
  return &it->second;
}

void Day::CancelOne() {
  Client* client = Pick();
  if (client == nullptr) return engine_->Cancel(next_id_ + 7, absl::OkStatus());  // unknown
  if (!client->cancelled) {
    client->cancel_status =
        random_.Chance(0.3) ? absl::OkStatus() : absl::CancelledError("the client left");
  }
  client->cancelled = true;
  if (bugs_.stream == StreamBug::kIgnoreCancel) return;
  engine_->Cancel(client->request.id, client->cancel_status);
}

void Day::AcknowledgeOne(bool all) {
  Client* client = Pick();
  if (client == nullptr) return engine_->Acknowledge(next_id_ + 7, 1);
  const int64_t open = static_cast<int64_t>(client->delivered) - client->acknowledged;
  const int64_t taken = all ? open : random_.Int(0, open);
  client->acknowledged += taken;
  if (bugs_.stream == StreamBug::kLoseWakeup) return;
  // More than there is counts as all there is.
  const int64_t excess = taken == open && random_.Chance(0.2) ? 1000 : 0;
  engine_->Acknowledge(client->request.id, taken + excess);
}

// Bugs that an engine could have, made from a correct one's outputs.
void Day::Plant(std::vector<RequestOutput>* outputs) {
  preempted_since_ |= engine_->stats().preemptions > seen_preemptions_;
  seen_preemptions_ = engine_->stats().preemptions;
  for (size_t i = 0; i < outputs->size(); ++i) {
    RequestOutput& output = (*outputs)[i];
    if (preempted_since_ && !output.tokens.empty()) {
      if (bugs_.stream == StreamBug::kDropToken) output.tokens.pop_back();
      if (bugs_.stream == StreamBug::kRepeatToken) output.tokens.push_back(output.tokens.back());
      preempted_since_ = false;
    }
    if (bugs_.stream == StreamBug::kForgetProgress && output.prompt_logprobs.size() > 1) {
      output.prompt_logprobs.push_back(output.prompt_logprobs.back());
    }
    if (bugs_.stream == StreamBug::kLoseFinish && output.finish && !strike_) {
      strike_ = true;
      output.finish.reset();
    }
  }
}

void Day::Step() {
  ++marks_.steps;
  const bool work = engine_->HasWork() || engine_->NextDeadline() <= now_;
  const int64_t runs = executor_->runs();
  std::vector<RequestOutput> outputs = engine_->Step(now_);
  if (!work && (!outputs.empty() || executor_->runs() != runs)) Violate("HasWork missed work");
  Plant(&outputs);
  for (const RequestOutput& output : outputs) Check(output);
  if (!executor_->violation().empty()) return Violate(executor_->violation());
  if (engine_->fatal().ok()) {
    CheckAfterStep();
  } else if (swarm_.executor.fail_at_run < 0) {
    Violate("fatal without a fault");
  } else {
    ++marks_.faults;
    if (swarm_.executor.fail_late) ++marks_.late_faults;
    if (!clients_.empty()) Violate("a request outlived the engine");
  }
}

void Day::Check(const RequestOutput& output) {
  const auto found = clients_.find(output.id);
  if (found == clients_.end()) return Violate("an output after the end");
  Client& client = found->second;
  for (const SampledToken& token : output.tokens) {
    if (client.delivered >= client.expected.tokens.size()) return Violate("too many tokens");
    const SampledToken& expected = client.expected.sampled[client.delivered++];
    Expect(token.id == expected.id, "wrong token", output.id);
    Expect(token.logprob == expected.logprob && token.rank == expected.rank &&
               token.top.size() == expected.top.size(),
           "wrong log-probability", output.id);
    trace_ = Fold(trace_, Mix(output.id, static_cast<uint64_t>(token.id)));
  }
  for (const SampledToken& token : output.prompt_logprobs) {
    if (client.scored >= client.expected.prompt_logprobs.size()) return Violate("too many scores");
    const SampledToken& expected = client.expected.prompt_logprobs[client.scored++];
    Expect(token.id == expected.id && token.logprob == expected.logprob &&
               token.rank == expected.rank && token.top.size() == expected.top.size(),
           "wrong prompt log-probability", output.id);
  }
  if (client.request.flow_window > 0) {
    const int64_t open = static_cast<int64_t>(client.delivered) - client.acknowledged;
    Expect(open <= client.request.flow_window, "beyond the flow_window", output.id);
    const bool paused = open == client.request.flow_window;
    if (paused && !client.was_paused) ++marks_.pauses;
    client.was_paused = paused;
  }
  if (!output.finish) return;
  CheckFinish(client, output);
  trace_ = Fold(trace_, Mix(output.id, static_cast<uint64_t>(output.finish->status.code())));
  clients_.erase(found);
  ended_ = output.id;
}

void Day::CheckFinish(const Client& client, const RequestOutput& output) {
  const Finish& finish = *output.finish;
  const Expected& expected = client.expected;
  const RequestId id = output.id;
  const bool complete = client.delivered == expected.tokens.size() &&
                        client.scored == expected.prompt_logprobs.size();
  Expect(finish.stats.completion_tokens == static_cast<int64_t>(client.delivered), "stats", id);
  if (absl::IsResourceExhausted(finish.status)) {  // before it was cancelled, if it was
    Expect(finish.stats.acp.pages_allocated == 0, "displaced after its start", id);
    ++marks_.displaced;
  } else if (client.cancelled) {
    if (finish.status.ok() && client.cancel_status.ok()) {
      Expect(finish.reason == FinishReason::kAbort, "abort", id);
    } else {
      // The executor may fail in the same step only after cancellations were delivered.
      Expect(finish.status == client.cancel_status, "cancel status", id);
    }
    const bool started = finish.stats.acp.pages_allocated > 0;
    ++(finish.stats.preemptions > 0 ? marks_.cancelled_preempted
       : started                    ? marks_.cancelled_running
                                    : marks_.cancelled_waiting);
  } else if (finish.status.ok()) {
    Expect(complete, "ended too early", id);
    Expect(!expected.numerical_failure && !expected.exhausts_pool, "should have failed", id);
    Expect(finish.reason == expected.reason, "wrong reason", id);
    Expect(finish.stop_token_id == expected.stop_token_id, "wrong stop token", id);
    Expect(finish.eos == expected.eos, "wrong eos", id);
    CheckPages(client, finish);
    ++(finish.reason == FinishReason::kStop ? marks_.stopped : marks_.lengths);
  } else if (absl::IsDeadlineExceeded(finish.status)) {
    const bool waited = finish.stats.acp.pages_allocated == 0;
    // A request that has not started may be given up for a deadline that it could not meet.
    const bool hopeless = waited && client.request.deadline < kNever;
    Expect(now_ >= client.request.deadline || hopeless ||
               (waited && now_ >= client.request.queue_deadline),
           "expired too early", id);
    ++marks_.deadlines;
  } else if (absl::IsInternal(finish.status)) {
    Expect(expected.numerical_failure && complete, "failed for no reason", id);
    ++marks_.numerical;
  } else if (absl::IsAborted(finish.status)) {
    Expect(client.request.flow_window > 0, "aborted without a pause", id);
    ++marks_.stalled;
  } else if (absl::IsOutOfRange(finish.status)) {
    Expect(expected.exhausts_pool || swarm_.executor.understated_pages > 0, "the pool would do",
           id);
    ++marks_.exhausted;
  } else {
    Expect(absl::IsUnavailable(finish.status) && !engine_->fatal().ok(), "odd status", id);
  }
}

// Surplus work is in nobody's statistics.
void Day::CheckPages(const Client& client, const Finish& finish) {
  const bool unread = finish.reason == FinishReason::kLength && client.delivered > 0;
  const int64_t fed =
      static_cast<int64_t>(client.request.prompt.size() + client.delivered) - (unread ? 1 : 0);
  const int64_t once = swarm_.executor.limits.lists_per_slot * PagesFor(fed);
  const int64_t pages = finish.stats.acp.pages_allocated;
  const bool right = finish.stats.preemptions == 0
                         ? pages == once
                         : pages >= once && pages <= (finish.stats.preemptions + 1) * once;
  Expect(right, "wrong number of pages", client.request.id);
}

void Day::CheckAfterStep() {
  executor_->Audit();
  if (!executor_->violation().empty()) return Violate(executor_->violation());
  const EngineStats& stats = engine_->stats();
  const int64_t live = static_cast<int64_t>(clients_.size());
  if (stats.running + stats.waiting + stats.paused != live) Violate("requests are miscounted");
  // Finished sequences leave their slots one step later.
  if (executor_->occupied_slots() < stats.running) Violate("a running sequence without a slot");
  if (stats.free_pages > executor_->collected_free_pages()) Violate("free pages are overstated");
  if (stats.running + stats.paused > executor_->occupied_slots()) ++marks_.preempted_paused;
  if (live == 0 && !engine_->HasWork() && executor_->occupied_slots() > 0) {
    Violate("a slot is held by nobody");
  }
  if (!engine_->HasWork() && executor_->in_flight() > 0) Violate("asleep with a plan in flight");
  for (const auto& [id, client] : clients_) {
    Expect(!client.cancelled, "a cancelled request lives on", id);
    Expect(now_ < client.request.deadline, "a deadline was ignored", id);
  }
}

// Readers are fast now and nobody new comes: all must end, and the pool must be full.
void Day::FinishAll() {
  int64_t bound = 1000;
  for (const auto& [id, client] : clients_) {
    const int64_t tokens = static_cast<int64_t>(client.request.prompt.size()) +
                           static_cast<int64_t>(client.expected.tokens.size());
    bound += 20 * tokens;
  }
  while (!clients_.empty() && ok()) {
    if (--bound < 0) return Violate("starved");
    for (auto& [id, client] : clients_) {
      const int64_t open = static_cast<int64_t>(client.delivered) - client.acknowledged;
      client.acknowledged += open;
      if (open > 0 && bugs_.stream != StreamBug::kLoseWakeup) engine_->Acknowledge(id, open);
    }
    if (!engine_->HasWork() && engine_->NextDeadline() == kNever) return Violate("asleep");
    now_ += 0.01;
    ++marks_.operations;
    Step();
  }
  for (int i = 0; i < 3 && engine_->HasWork() && ok(); ++i) Step();
  if (!ok() || !engine_->fatal().ok()) return;
  if (engine_->HasWork()) Violate("work without requests");
  if (executor_->free_pages() != swarm_.executor.limits.num_pages) Violate("pages leaked");
  if (executor_->occupied_slots() != 0) Violate("slots leaked");
  if (print_) std::printf("trace %016llx\n", static_cast<unsigned long long>(trace_));
}

}  // namespace

void Marks::Add(const Marks& other) {
  operations += other.operations;
  steps += other.steps;
  tokens += other.tokens;
  submitted += other.submitted;
  rejected += other.rejected;
  preemptions += other.preemptions;
  evictions += other.evictions;
  cancelled_waiting += other.cancelled_waiting;
  cancelled_running += other.cancelled_running;
  cancelled_preempted += other.cancelled_preempted;
  preempted_paused += other.preempted_paused;
  pauses += other.pauses;
  deadlines += other.deadlines;
  exhausted += other.exhausted;
  numerical += other.numerical;
  faults += other.faults;
  stopped += other.stopped;
  lengths += other.lengths;
  sampled += other.sampled;
  fed_samples += other.fed_samples;
  processed_samples += other.processed_samples;
  restored_states += other.restored_states;
  returns += other.returns;
  late_faults += other.late_faults;
  displaced += other.displaced;
  stalled += other.stalled;
}

Report Simulate(uint64_t seed, int64_t operations, Bugs bugs, bool print) {
  return Day(seed, bugs, print).Run(operations);
}

}  // namespace fox::sim
