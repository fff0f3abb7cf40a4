// The day: its actors, its clients, and the promises that are checked. See call_simulation.h.
#include "tests/server/calls/sim/call_simulation.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/request/step_observer.h"
#include "kernels/core/check.h"
#include "server/calls/call.h"
#include "tests/engine/sim/random.h"
#include "tests/fixtures/test_core.h"
#include "tests/server/calls/sim/sim_format.h"
#include "tests/server/calls/sim/sim_transport.h"

namespace fox::sim {
namespace {

constexpr int kMaxDepth = 3;            // actors inside actors
constexpr int kAdmissionThreads = 2;    // as a server has
constexpr int kMaxRounds = 20'000;      // of all actors, until every call has ended
constexpr size_t kMaxOpenCalls = 24;
constexpr char kNames[] =
    "events calls refused_calls tokenizing malformed invalid_prompts taken_ids grammars streams "
    "whole_answers failures aborts aborts_before_ids deadlines answers_unread abandoned_writes "
    "closed_converting closed_running closed_draining stalls keep_alives interrupts hangs "
    "executor_faults drains";

// One seed's load.
struct Load {
  explicit Load(Random& random) {
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

class Day final : public SimEnvironment, public StepObserver {
 public:
  explicit Day(const CallDayOptions& options)
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
    bool cut_in_write = false;       // the day cut the reader off, not its call
    absl::Status closed;             // the reason why the reader left; Ok: it has not
    std::set<size_t> aborted;        // prompts
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
  Load load_;
  int depth_ = 0;
  bool quiet_ = false;  // nobody interrupts any more
  bool ending_ = false;  // no new calls
  bool drained_ = false, executor_fails_ = false, hangs_ = false;
  int64_t next_id_ = 0;
  // The actors that act now.
  int admission_acts_ = 0, tokenizing_acts_ = 0, grammar_acts_ = 0;
  bool engine_acts_ = false;
  std::vector<bool> lane_acts_;
  std::vector<ClientPtr> open_;              // not released
  std::vector<std::weak_ptr<Call>> calls_;  // all of them
  std::unique_ptr<TestCore> core_;
};

void Day::ReportViolation(const std::string& what) {
  Print("VIOLATION " + what);
  if (report_.violation.empty()) report_.violation = what;
}

void Day::Interrupt() {
  if (quiet_ || depth_ == kMaxDepth || !random_.Chance(load_.interrupts)) return;
  ++depth_;
  for (int64_t i = random_.Int(1, 3); i > 0; --i) {
    Count(CallMark::kInterrupts);
    Act();
  }
  --depth_;
}

void Day::Act() {
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

CallPlan Day::MakePlan() {
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
    for (int64_t size = random_.Int(1, 12); size > 0; --size) {  // rarely one that is kept
      prompt.choice += static_cast<char>('a' + random_.Int(0, 25));
    }
  }
  return plan;
}

void Day::StartCall() {
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
  CallInfo info = core_->core->Describe("Simulated", peer, [](const std::string&, int) {
    return absl::string_view();
  });
  client->has_deadline = random_.Chance(load_.deadlines);
  if (client->has_deadline) info.deadline = core_->now + random_.Unit() * 0.3;
  const auto port =
      random_.Chance(0.5) ? SimTransport::Port::kGrpc : SimTransport::Port::kHttp;
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

bool Day::RunPool(AdmissionPool& pool, int threads, int* acting) {
  if (*acting == threads) return false;
  ++*acting;
  const bool ran = pool.RunNext();
  --*acting;
  if (ran) Print("admission");
  return ran;
}

void Day::RunGrammar() {
  if (grammar_acts_ > 0) return;
  ++grammar_acts_;
  if (core_->core->grammars().RunNext()) Print("grammar");
  --grammar_acts_;
}

void Day::RunEngine() {
  if (engine_acts_ || hangs_) return;
  engine_acts_ = true;
  core_->engine->RunTurn();
  engine_acts_ = false;
  Print("engine");
}

void Day::RunLane(size_t lane) {
  if (lane_acts_[lane]) return;
  lane_acts_[lane] = true;
  if (core_->core->delivery().RunLane(lane)) Print(absl::StrCat("lane ", lane));
  lane_acts_[lane] = false;
}

void Day::LetReaderAct() {
  if (open_.empty()) return;
  ClientPtr client;
  for (int i = 0; i < (grammar_acts_ > 0 ? 6 : 1); ++i) {
    client = open_[static_cast<size_t>(random_.Int(0, static_cast<int64_t>(open_.size()) - 1))];
    // Beside a grammar that is compiled, rather one of those who wait for it.
    if (client->plan.stream && client->transport->received().empty()) break;
  }
  if (!client->transport->acts() && !client->transport->released()) LetReaderAct(client);
}

void Day::LetReaderAct(const ClientPtr& client) {
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

void Day::CloseReader(const ClientPtr& client, const absl::Status& reason) {
  const Call::Stage stage = client->transport->call()->stage();
  Count(absl::IsAborted(reason)               ? CallMark::kStalls
        : stage == Call::Stage::kConverting ? CallMark::kClosedConverting
        : stage == Call::Stage::kRunning    ? CallMark::kClosedRunning
                                            : CallMark::kClosedDraining);
  Print(absl::StrCat("close ", reason.message()));
  client->closed = reason;
  client->cut_in_write = client->transport->has_bytes() && !client->transport->ended() &&
                         !client->transport->abandoned();
  client->transport->CloseReader(reason);
}

void Day::AbortPrompt() {
  if (open_.empty()) return;
  const ClientPtr client =
      open_[static_cast<size_t>(random_.Int(0, static_cast<int64_t>(open_.size()) - 1))];
  if (client->plan.prompts.empty()) return;
  const size_t prompt = static_cast<size_t>(
      random_.Int(0, static_cast<int64_t>(client->plan.prompts.size()) - 1));
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

CallReport Day::Run() {
  for (; report_.operation < options_.operations && report_.violation.empty();
       ++report_.operation) {
    Act();
    FOX_CHECK(depth_ == 0);
    ForgetReleased();
    CheckBudget();
  }
  if (report_.violation.empty()) EndDay();
  quiet_ = true;  // what is left ends in the destructors
  core_ = nullptr;
  return report_;
}

void Day::EndDay() {
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
bool Day::RunAllActors(bool engine_works) {
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

void Day::ForgetReleased() {
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

// The memory that formats and transports really hold is charged to the budget.
void Day::CheckBudget() {
  const CallBudget& budget = core_->core->calls();
  int64_t held = 0;
  for (const ClientPtr& client : open_) {
    const std::shared_ptr<Call> call = client->call.lock();
    if (call == nullptr) continue;
    held += client->format->held_bytes();
    const bool failed = client->transport->ended() && !client->transport->status().ok();
    if (!failed) held += client->transport->in_flight_bytes();
  }
  if (held > budget.bytes()) {
    ReportViolation(absl::StrCat(held, " bytes are held and ", budget.bytes(), " charged"));
  }
  if (budget.bytes() > budget.max_bytes() || budget.calls() > budget.max_calls()) {
    ReportViolation("the budget is overdrawn");
  }
}

// All that a client got, once its transport has let go of the answer.
void Day::CheckAnswer(const Client& client) {
  const SimTransport& transport = *client.transport;
  std::string bytes = transport.received();
  for (const char c : bytes) report_.trace = Mix(report_.trace, static_cast<unsigned char>(c));
  const bool whole = client.closed.ok();
  if (whole && !transport.ended()) return ReportViolation("an answer without an end");
  if (client.cut_in_write && !transport.abandoned() && transport.ended() &&
      transport.status() == AnswersUnread()) {
    ReportViolation("the write of a reader whose answer fills the budget is not cut off");
  }
  const bool ok = whole && transport.status().ok();
  if (whole && !ok) CheckFailure(client);
  if (client.plan.prompts.empty()) {
    if (ok && bytes != kTokenizedAnswer) ReportViolation("another answer than the tokenizer's");
    return;
  }
  struct Sequence {
    std::string text;
    int finishes = 0, reason = 0;
  };
  std::map<std::pair<size_t, uint32_t>, Sequence> sequences;
  std::map<size_t, int> begun;
  Record record;
  while (TakeRecord(&bytes, &record)) {
    if (record.kind == Record::Kind::kKeepAlive) continue;
    if (record.kind == Record::Kind::kPrompt) {
      ++begun[record.prompt];
      continue;
    }
    if (begun[record.prompt] != 1) ReportViolation("a prompt's first event is not one, or late");
    Sequence& sequence = sequences[{record.prompt, record.sequence}];
    if (sequence.finishes > 0) ReportViolation("an event after the sequence's end");
    if (record.kind == Record::Kind::kText) sequence.text += record.text;
    if (record.kind == Record::Kind::kFinish) {
      ++sequence.finishes;
      sequence.reason = record.reason;
    }
  }
  if (whole && (ok ? !bytes.empty() : bytes.substr(0, 1) != "!")) {
    ReportViolation("the answer ends otherwise than its form says");
  }
  for (const auto& [key, sequence] : sequences) {
    if (key.first >= client.plan.prompts.size() ||
        static_cast<int32_t>(key.second) >= client.plan.prompts[key.first].sequences) {
      return ReportViolation("an event of no sequence");
    }
    const std::string wrong =
        CheckSequence(client, key.first, sequence.text, sequence.finishes, sequence.reason);
    if (!wrong.empty()) ReportViolation(wrong);
  }
  if (!ok) return;
  Count(client.plan.stream ? CallMark::kStreams : CallMark::kWholeAnswers);
  for (size_t i = 0; i < client.plan.prompts.size(); ++i) {
    for (int32_t j = 0; j < client.plan.prompts[i].sequences; ++j) {
      if (sequences[{i, static_cast<uint32_t>(j)}].finishes != 1) {
        ReportViolation("a sequence of an answer without an end");
      }
    }
  }
}

std::string Day::CheckSequence(const Client& client, size_t prompt, const std::string& text,
                               int finishes, int reason) const {
  const PromptPlan& plan = client.plan.prompts[prompt];
  const bool chosen = !plan.choice.empty();
  const std::string expected =
      chosen ? plan.choice : ExpectedText(plan.text, static_cast<size_t>(plan.max_tokens));
  if (expected.compare(0, text.size(), text) != 0) {
    return absl::StrCat("the text '", text, "' instead of '", expected, "'");
  }
  if (finishes == 0) return "";
  if (reason == v1::ABORT) {
    return client.aborted.count(prompt) > 0 ? "" : "an abort that no client asked for";
  }
  const bool cut = chosen && static_cast<int32_t>(expected.size()) > plan.max_tokens;
  const int natural =
      chosen && !cut && static_cast<int32_t>(text.size()) < plan.max_tokens
          ? v1::STOP
          : v1::LENGTH;
  if (reason != natural && !(chosen && reason == v1::STOP)) {
    return absl::StrCat("a sequence ends for reason ", reason);
  }
  if (!cut && text != expected) return absl::StrCat("the text ends after '", text, "'");
  return "";
}

void Day::CheckFailure(const Client& client) {
  const absl::Status& status = client.transport->status();
  Count(CallMark::kFailures);
  if (absl::IsDeadlineExceeded(status)) Count(CallMark::kDeadlines);
  if (absl::IsAlreadyExists(status)) Count(CallMark::kTakenIds);
  if (status == AnswersUnread()) Count(CallMark::kAnswersUnread);
  if (!MayFailWith(client, status.code())) {
    ReportViolation("a call fails without a cause: " + status.ToString());
  }
}

bool Day::MayFailWith(const Client& client, absl::StatusCode code) const {
  const std::vector<PromptPlan>& prompts = client.plan.prompts;
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return client.plan.malformed || std::any_of(prompts.begin(), prompts.end(),
                                                  [](const auto& p) { return p.invalid; });
    case absl::StatusCode::kAlreadyExists:
      return load_.ids > 0;
    case absl::StatusCode::kDeadlineExceeded:
      return client.has_deadline;
    case absl::StatusCode::kResourceExhausted:
      // The queue may be longer than the deadline, and four grammars of a client may wait.
      return !load_.roomy || client.has_deadline ||
             std::any_of(prompts.begin(), prompts.end(),
                         [](const auto& p) { return !p.choice.empty(); });
    case absl::StatusCode::kUnavailable:
      return drained_ || executor_fails_ || hangs_;
    case absl::StatusCode::kCancelled:  // aborted while its grammar waited
      return !client.aborted.empty();
    default:
      return false;
  }
}

void Day::CheckEnd(bool engine_works) {
  for (const std::weak_ptr<Call>& call : calls_) {
    if (engine_works && !call.expired()) return ReportViolation("a call outlives its end");
  }
  ServerCore& core = *core_->core;
  if (core.calls().calls() != 0 || core.calls().bytes() != 0) {
    ReportViolation(absl::StrCat(core.calls().calls(), " calls and ", core.calls().bytes(),
                                 " bytes stay in the budget"));
  }
  if (!core.registry().empty()) ReportViolation("an id stays registered");
  if (!engine_works) return;
  if (core.admitting() != 0) ReportViolation("a prompt stays counted in admission");
  const EngineStats stats = core_->engine->stats();
  if (!executor_fails_ && stats.free_pages != stats.num_pages) {
    ReportViolation("pages stay taken");
  }
}

}  // namespace

std::string Name(CallMark mark) {
  std::istringstream words(kNames);
  std::string name;
  for (int i = 0; i <= static_cast<int>(mark); ++i) words >> name;
  return name;
}

CallReport SimulateCalls(const CallDayOptions& options) { return Day(options).Run(); }

std::string Describe(const CallDayOptions& options, const CallReport& report) {
  return absl::StrCat("seed ", options.seed, ", operation ", report.operation, ": ",
                      report.violation, "\n  fox-simulate-calls --seed ", options.seed,
                      " --operations ", options.operations, " --print");
}

}  // namespace fox::sim
