// CallDay: its actors. See call_day.h.
#include "tests/server/calls/sim/call_day.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"

namespace fox::sim {
namespace {

constexpr int kMaxDepth = 3;          // actors inside actors
constexpr int kAdmissionThreads = 2;  // as a server has
constexpr int kMaxRounds = 20'000;    // of all actors, until every call has ended
constexpr size_t kMaxOpenCalls = 24;

}  // namespace

void CallDay::ReportViolation(const std::string& what) {
  Print("VIOLATION " + what);
  if (report_.violation.empty()) report_.violation = what;
}

void CallDay::Interrupt() {
  if (quiet_ || depth_ == kMaxDepth || !random_.Chance(load_.interrupts)) return;
  ++depth_;
  for (int64_t i = random_.Int(1, 3); i > 0; --i) {
    Count(CallMark::kInterrupts);
    Act();
  }
  --depth_;
}

void CallDay::Act() {
  core_->now += random_.Unit() * 0.001;
  const double what = random_.Unit();
  if (what < 0.06) {
    StartCall();
  } else if (what < 0.18) {
    RunPool(core_->core->admission(), kAdmissionThreads, &admission_acts_);
  } else if (what < 0.20) {
    RunPool(core_->core->tokenizing(), kAdmissionThreads, &tokenizing_acts_);
  } else if (what < 0.23) {
    RunGrammar();
  } else if (what < 0.43) {
    RunEngine();
  } else if (what < 0.68) {
    RunLane(static_cast<size_t>(random_.Int(0, static_cast<int64_t>(lane_acts_.size()) - 1)));
  } else if (what < 0.98) {
    LetReaderAct();
  } else if (load_.aborts) {
    AbortPrompt();
  }
}

CallPlan CallDay::MakePlan() {
  CallPlan plan;
  if (random_.Chance(0.05)) return plan;  // tokenizes
  plan.stream = random_.Chance(load_.streams);
  plan.malformed = random_.Chance(load_.wrong / 2);
  plan.flow_window = static_cast<int32_t>(random_.Chance(0.5) ? 0 : random_.Int(1, 8));
  plan.records_per_write = static_cast<size_t>(random_.Int(1, 6));
  for (int64_t i = random_.Chance(0.7) ? 1 : random_.Int(1, 3); i > 0; --i) {
    PromptPlan& prompt = plan.prompts.emplace_back();
    for (int64_t size = random_.Int(0, 30); size > 0; --size) {
      prompt.text += static_cast<char>('a' + random_.Int(0, 25));
    }
    prompt.request_id = load_.ids > 0 ? absl::StrCat("id", random_.Int(1, load_.ids))
                                      : absl::StrCat("unique", ++next_id_);
    prompt.sequences = static_cast<int32_t>(random_.Chance(0.8) ? 1 : random_.Int(2, 3));
    prompt.max_tokens = static_cast<int32_t>(random_.Int(1, load_.max_tokens));
    prompt.invalid = random_.Chance(load_.wrong / 2);
    if (!random_.Chance(load_.grammars)) continue;
    for (int64_t size = random_.Int(1, 12); size > 0; --size) {  // rarely in the cache
      prompt.choice += static_cast<char>('a' + random_.Int(0, 25));
    }
  }
  return plan;
}

void CallDay::StartCall() {
  if (ending_ || open_.size() >= kMaxOpenCalls) return;
  const auto client = std::make_shared<Client>();
  client->plan = MakePlan();
  const double reader = random_.Unit();
  if (reader < load_.stopped) {
    client->reader = Reader::kStopped;
  } else if (reader < load_.stopped + load_.slow) {
    client->reader = Reader::kSlow;
  }
  const bool tokenizes = client->plan.prompts.empty();
  const std::string peer = absl::StrCat("ipv4:10.0.", random_.Int(1, load_.clients), ".1:1");
  CallInfo info = core_->core->Describe("Simulated", peer, {});
  client->has_deadline = random_.Chance(load_.deadlines);
  if (client->has_deadline) info.deadline = core_->now + random_.Unit() * 0.3;
  const auto port = random_.Chance(0.5) ? SimTransport::Port::kGrpc : SimTransport::Port::kHttp;
  client->transport = std::make_shared<SimTransport>(port, *this);
  auto format = std::make_unique<SimFormat>(client->plan, *this);
  client->format = format.get();
  const auto call = std::make_shared<Call>(
      *core_->core, std::move(info), tokenizes ? Call::Work::kTokenize : Call::Work::kGenerate,
      std::move(format), client->transport);
  client->call = call;
  calls_.push_back(call);
  client->transport->Attach(call);
  open_.push_back(client);
  Count(tokenizes ? CallMark::kTokenizing : CallMark::kCalls);
  Print(absl::StrCat("start of ", client->plan.prompts.size(), " prompts"));
  call->Start(random_.Int(1, 1000));
  if (client->transport->ended() && !client->transport->status().ok()) {
    Count(CallMark::kRefusedCalls);
  }
}

bool CallDay::RunPool(AdmissionPool& pool, int threads, int* acting) {
  if (*acting == threads) return false;
  ++*acting;
  const bool ran = pool.RunNext();
  --*acting;
  if (ran) Print("admission");
  return ran;
}

void CallDay::RunGrammar() {
  if (grammar_acts_ > 0) return;
  ++grammar_acts_;
  if (core_->core->grammars().RunNext()) Print("grammar");
  --grammar_acts_;
}

void CallDay::RunEngine() {
  if (engine_acts_ || hangs_) return;
  engine_acts_ = true;
  core_->engine->RunTurn();
  engine_acts_ = false;
  Print("engine");
}

void CallDay::RunLane(size_t lane) {
  if (lane_acts_[lane]) return;
  lane_acts_[lane] = true;
  if (core_->core->delivery().RunLane(lane)) Print(absl::StrCat("lane ", lane));
  lane_acts_[lane] = false;
}

void CallDay::LetReaderAct() {
  if (open_.empty()) return;
  ClientPtr client;
  for (int i = 0; i < (grammar_acts_ > 0 ? 6 : 1); ++i) {
    client = open_[static_cast<size_t>(random_.Int(0, static_cast<int64_t>(open_.size()) - 1))];
    // While a grammar is compiled, prefers a client that waits for it.
    if (client->plan.stream && client->transport->received().empty()) break;
  }
  if (!client->transport->acts() && !client->transport->released()) LetReaderAct(client);
}

void CallDay::LetReaderAct(const ClientPtr& client) {
  SimTransport& transport = *client->transport;
  if (transport.abandoned() && !transport.closed()) {
    if (random_.Chance(0.5)) CloseReader(client, absl::AbortedError("the reader has stalled"));
  } else if (!transport.closed() && random_.Chance(load_.closes * (depth_ > 0 ? 10 : 1))) {
    CloseReader(client, absl::CancelledError("the client went away"));
  } else if (transport.has_bytes()) {
    const bool stopped = client->reader == Reader::kStopped && !transport.closed();
    if (stopped) {
      if (random_.Chance(0.01)) CloseReader(client, absl::AbortedError("the reader has stalled"));
    } else if (client->reader == Reader::kFast || random_.Chance(0.05)) {
      Print("read");
      transport.ReadBytes();
    }
  } else if (!transport.closed() && random_.Chance(0.2)) {
    Print("silence");
    transport.KeepAlive();
  }
}

void CallDay::CloseReader(const ClientPtr& client, const absl::Status& reason) {
  const Call::Stage stage = client->transport->call()->stage();
  Count(absl::IsAborted(reason)             ? CallMark::kStalls
        : stage == Call::Stage::kConverting ? CallMark::kClosedConverting
        : stage == Call::Stage::kRunning    ? CallMark::kClosedRunning
                                            : CallMark::kClosedDraining);
  Print(absl::StrCat("close ", reason.message()));
  client->closed = reason;
  client->cut_in_write = client->transport->has_bytes() && !client->transport->ended() &&
                         !client->transport->abandoned();
  client->transport->CloseReader(reason);
}

void CallDay::AbortPrompt() {
  if (open_.empty()) return;
  const ClientPtr client =
      open_[static_cast<size_t>(random_.Int(0, static_cast<int64_t>(open_.size()) - 1))];
  if (client->plan.prompts.empty()) return;
  const size_t prompt =
      static_cast<size_t>(random_.Int(0, static_cast<int64_t>(client->plan.prompts.size()) - 1));
  const std::string& id = client->plan.prompts[prompt].request_id;
  CallInfo caller;  // of no tenant, as all clients here
  // All that may be meant: an id can be another call's prompt by now.
  for (const ClientPtr& other : open_) {
    for (size_t i = 0; i < other->plan.prompts.size(); ++i) {
      if (other->plan.prompts[i].request_id == id) other->aborted.insert(i);
    }
  }
  if (!AbortCalls(*core_->core, caller, id)) return;
  Count(CallMark::kAborts);
  const std::shared_ptr<Call> call = client->call.lock();
  if (call != nullptr && call->stage() == Call::Stage::kConverting) {
    Count(CallMark::kAbortsBeforeIds);
  }
  Print("abort " + id);
}

CallReport CallDay::Run() {
  for (; report_.operation < options_.operations && report_.violation.empty();
       ++report_.operation) {
    Act();
    FOX_CHECK(depth_ == 0);
    ForgetReleased();
    CheckBudget();
  }
  if (report_.violation.empty()) EndDay();
  quiet_ = true;  // the destructors end all open calls, and no actor interrupts them
  core_ = nullptr;
  return report_;
}

void CallDay::EndDay() {
  ending_ = true;
  const double how = random_.Unit();
  if (how < 0.3) {
    drained_ = true;
    Count(CallMark::kDrains);
    core_->core->Drain();
  } else if (how < 0.4) {
    executor_fails_ = true;
    Count(CallMark::kExecutorFaults);
    core_->script->fail = true;
  } else if (how < 0.5) {
    hangs_ = true;
    Count(CallMark::kHangs);
    // A prompt that the engine has not been given yet is not abandoned.
    while (core_->core->admission().RunNext() || core_->core->grammars().RunNext()) continue;
    AbandonCalls(*core_->core, absl::UnavailableError("the engine hangs"));
  }
  Print("no new calls");
  for (int round = 0; !RunAllActors(!hangs_); ++round) {
    if (round == kMaxRounds) return ReportViolation("a call never ends");
    if (!report_.violation.empty()) return;
  }
  for (int i = 0; i < 8; ++i) RunAllActors(!hangs_);  // outputs of calls that have ended, plans
  CheckEnd(!hangs_);
}

// True: every call has ended.
bool CallDay::RunAllActors(bool engine_works) {
  core_->now += 0.001;
  RunPool(core_->core->admission(), kAdmissionThreads, &admission_acts_);
  RunPool(core_->core->tokenizing(), kAdmissionThreads, &tokenizing_acts_);
  RunGrammar();
  if (engine_works) RunEngine();
  for (size_t lane = 0; lane < lane_acts_.size(); ++lane) RunLane(lane);
  const std::vector<ClientPtr> open = open_;  // an interrupt may start calls
  for (const ClientPtr& client : open) {
    SimTransport& transport = *client->transport;
    if (transport.released()) continue;
    const bool stays = client->reader != Reader::kStopped && !transport.abandoned();
    if (!stays && !transport.closed() && transport.has_bytes()) {
      CloseReader(client, absl::AbortedError("the reader has stalled"));
    } else if (transport.has_bytes()) {
      transport.ReadBytes();
    }
  }
  ForgetReleased();
  return open_.empty() && (!engine_works || core_->core->Idle());
}

void CallDay::ForgetReleased() {
  std::vector<ClientPtr> open;
  for (const ClientPtr& client : std::exchange(open_, {})) {
    if (client->transport->released()) {
      CheckAnswer(*client);
    } else {
      open.push_back(client);
    }
  }
  open_ = std::move(open);
}

CallReport SimulateCalls(const CallDayOptions& options) { return CallDay(options).Run(); }

std::string Describe(const CallDayOptions& options, const CallReport& report) {
  return absl::StrCat("seed ", options.seed, ", operation ", report.operation, ": ",
                      report.violation, "\n  fox-simulate-calls --seed ", options.seed,
                      " --operations ", options.operations, " --print");
}

}  // namespace fox::sim
