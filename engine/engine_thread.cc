// EngineThread: a queue of commands in, listeners out. Listeners run without the lock, so they may
// call back. Read engine_thread.h first.
#include "engine/engine_thread.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include "engine/base/mutex.h"
#include "engine/base/steady_clock.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr Seconds kMaxWait = 0.04;  // between two heartbeats, each of which probes the executor
constexpr Seconds kEstimateAge = 0.01;
constexpr size_t kMaxFlushes = 1024;

struct SubmitCommand {
  std::vector<Request> requests;
  std::shared_ptr<SubmissionListener> listener;
  size_t lane;
};
struct CancelCommand {
  RequestId id;
  absl::Status status;
  FinishReason reason;
};
using Command = std::variant<SubmitCommand, CancelCommand>;
using Acknowledgements = std::unordered_map<RequestId, int64_t>;

struct Signals {
  std::set<std::string> flushes;  // of the prefix cache: namespaces, "": all
  bool save = false;              // the prefix cache
  bool news = false;              // of its store
  bool any() const { return !flushes.empty() || save || news; }
};

}  // namespace

struct EngineThread::Impl {
  Impl(std::unique_ptr<Engine> owned, Clock now)
      : engine(std::move(owned)), clock(now ? std::move(now) : Clock(SteadySeconds)) {
    stats = engine->stats();
    last_turn = SteadySeconds();
  }

  // False: the thread is stopping, and the command was dropped.
  bool Push(Command command);
  void Loop();
  void RunTurn();
  void EndLoop();
  void Report(std::vector<RequestOutput> outputs);
  std::vector<Command> TakeCommands(Acknowledgements* acknowledgements, Signals* signals);
  void ExecuteCommands();
  void Execute(Command& command);
  void SubmitOnEngineThread(SubmitCommand& command);
  void Deliver(std::vector<RequestOutput> outputs);
  void FlushDelivery();
  void EndAll();
  void Publish();

  // Only the engine thread uses these.
  const std::unique_ptr<Engine> engine;
  struct Listening {
    std::shared_ptr<SubmissionListener> listener;
    size_t lane;
  };
  std::unordered_map<RequestId, Listening> listeners;
  DeliveryPool* delivery = nullptr;  // set before the first Submit
  bool staged = false;               // outputs that wait for a flush
  Seconds next_estimate = -kNever;

  const Clock clock;
  std::atomic<RequestId> next_id{1};
  std::atomic<double> last_turn{0.0};  // steady clock
  std::atomic<Seconds> queue_seconds{0.0};
  std::atomic<bool> draining{false};
  std::atomic<std::thread::id> thread_id{};

  mutable Mutex mutex;
  CondVar wake;
  std::vector<Command> commands ABSL_GUARDED_BY(mutex);
  Acknowledgements acknowledged ABSL_GUARDED_BY(mutex);
  Signals signals ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool stopped ABSL_GUARDED_BY(mutex) = false;  // the loop is over
  CondVar stopped_changed;
  // Requests submitted and not yet ended or refused.
  int64_t outstanding ABSL_GUARDED_BY(mutex) = 0;
  EngineStats stats ABSL_GUARDED_BY(mutex);
  absl::Status fatal ABSL_GUARDED_BY(mutex);

  Mutex join_mutex;
  std::thread thread ABSL_GUARDED_BY(join_mutex);
  bool has_thread = true;
};

bool EngineThread::Impl::Push(Command command) {
  {
    const MutexLock lock(mutex);
    if (stopping) return false;
    if (const auto* submit = std::get_if<SubmitCommand>(&command)) {
      outstanding += static_cast<int64_t>(submit->requests.size());
    }
    commands.push_back(std::move(command));
  }
  wake.NotifyOne();
  return true;
}

void EngineThread::Impl::Loop() {
  thread_id = std::this_thread::get_id();
  pthread_setname_np(pthread_self(), "engine");  // seen in a stuck process
  for (;;) {
    ExecuteCommands();
    {
      const MutexLock lock(mutex);
      if (stopping) break;
    }
    RunTurn();
  }
  EndLoop();
}

void EngineThread::Impl::RunTurn() {
  const bool works = engine->HasWork() || engine->NextDeadline() <= clock();
  Report(works ? engine->Step(clock()) : engine->Probe(clock()));
  FlushDelivery();
}

void EngineThread::Impl::EndLoop() {
  EndAll();
  last_turn = std::numeric_limits<double>::infinity();  // an ended loop does not hang
  FlushDelivery();
  {
    const MutexLock lock(mutex);
    stopped = true;
  }
  stopped_changed.NotifyAll();
}

void EngineThread::Impl::Report(std::vector<RequestOutput> outputs) {
  Publish();
  Deliver(std::move(outputs));
}

void EngineThread::Impl::FlushDelivery() {
  if (std::exchange(staged, false)) delivery->Flush(clock());
}

// Waits for a command, a deadline or the next heartbeat, but not while there is work.
std::vector<Command> EngineThread::Impl::TakeCommands(Acknowledgements* acknowledgements,
                                                      Signals* taken) {
  const bool waits = has_thread && !engine->HasWork();
  const Seconds wait =
      waits ? std::clamp(engine->NextDeadline() - clock(), 0.0, kMaxWait) : Seconds{0};
  const auto until = std::chrono::steady_clock::now() + SteadyDuration(wait);
  const MutexLock lock(mutex);
  while (wait > 0.0 && !stopping && !signals.any() && commands.empty() && acknowledged.empty()) {
    if (!wake.WaitUntil(mutex, until)) break;
  }
  acknowledgements->swap(acknowledged);
  *taken = std::exchange(signals, {});
  return std::exchange(commands, {});
}

void EngineThread::Impl::ExecuteCommands() {
  Acknowledgements acknowledgements;
  Signals signalled;
  std::vector<Command> taken = TakeCommands(&acknowledgements, &signalled);
  last_turn = SteadySeconds();
  for (const std::string& only : signalled.flushes) engine->FlushPrefixCache(only);
  if (signalled.save) engine->SavePrefixCache();
  for (const auto& [id, tokens] : acknowledgements) engine->Acknowledge(id, tokens);
  for (Command& command : taken) Execute(command);
}

void EngineThread::Impl::Execute(Command& command) {
  if (auto* submit = std::get_if<SubmitCommand>(&command)) {
    SubmitOnEngineThread(*submit);
  } else if (auto* cancel = std::get_if<CancelCommand>(&command)) {
    engine->Cancel(cancel->id, cancel->status, cancel->reason);
  }
}

void EngineThread::Impl::SubmitOnEngineThread(SubmitCommand& command) {
  std::vector<RequestId> ids;
  for (const Request& request : command.requests) ids.push_back(request.id);
  const absl::Status status = engine->Submit(std::move(command.requests), clock());
  if (status.ok()) {
    for (RequestId id : ids) listeners.emplace(id, Listening{command.listener, command.lane});
  }
  {
    const MutexLock lock(mutex);
    if (!status.ok()) outstanding -= static_cast<int64_t>(ids.size());
    FOX_CHECK(outstanding >= 0);
    stats = engine->stats();
  }
  command.listener->OnSubmitted(status);
}

void EngineThread::Impl::Deliver(std::vector<RequestOutput> outputs) {
  int64_t ended = 0;
  for (RequestOutput& output : outputs) {
    const RequestId id = output.id;
    const bool last = output.finish.has_value();
    if (last) ++ended;
    const auto found = listeners.find(id);
    if (found == listeners.end()) continue;
    const Listening& to = found->second;
    if (delivery == nullptr) {
      to.listener->OnOutput(std::move(output), clock());
    } else {
      staged = true;
      delivery->Stage(to.lane, {to.listener, std::move(output)});
    }
    if (last) listeners.erase(found);
  }
  if (ended == 0) return;
  const MutexLock lock(mutex);
  outstanding -= ended;
  FOX_CHECK(outstanding >= 0);
}

void EngineThread::Impl::EndAll() {
  for (const auto& [id, listener] : listeners) {
    engine->Cancel(id, absl::UnavailableError("the server is stopping"));
  }
  // Collects the plans in flight and releases the slots.
  while (engine->HasWork()) {
    last_turn = SteadySeconds();
    Deliver(engine->Step(clock()));
  }
  Acknowledgements unused;
  Signals signalled;
  for (Command& command : TakeCommands(&unused, &signalled)) {
    const auto* submit = std::get_if<SubmitCommand>(&command);
    if (submit == nullptr) continue;
    submit->listener->OnSubmitted(absl::UnavailableError("the server is stopping"));
    const MutexLock lock(mutex);
    outstanding -= static_cast<int64_t>(submit->requests.size());
  }
  Publish();
}

void EngineThread::Impl::Publish() {
  const Seconds now = clock();
  if (now >= next_estimate || engine->stats().running == 0) {
    queue_seconds = engine->QueueSeconds();
    next_estimate = now + kEstimateAge;
  }
  const MutexLock lock(mutex);
  stats = engine->stats();
  fatal = engine->fatal();
}

EngineThread::EngineThread(std::unique_ptr<Engine> engine, Clock clock, bool has_thread)
    : impl_(std::make_unique<Impl>(std::move(engine), std::move(clock))) {
  impl_->has_thread = has_thread;
  impl_->engine->SetWake([impl = impl_.get()] {
    {
      const MutexLock lock(impl->mutex);
      impl->signals.news = true;
    }
    impl->wake.NotifyOne();
  });
  if (!has_thread) return;
  const MutexLock lock(impl_->join_mutex);
  impl_->thread = std::thread([impl = impl_.get()] { impl->Loop(); });
}

EngineThread::~EngineThread() {
  impl_->engine->SetWake(nullptr);
  Stop();
}

void EngineThread::SetDelivery(DeliveryPool* pool) { impl_->delivery = pool; }

void EngineThread::RunTurn() {
  FOX_CHECK(!impl_->has_thread);
  impl_->ExecuteCommands();
  impl_->RunTurn();
}

void EngineThread::Submit(std::vector<Request> requests,
                          const std::shared_ptr<SubmissionListener>& listener, size_t lane) {
  if (draining()) {
    listener->OnSubmitted(absl::UnavailableError("the server is draining"));
  } else if (!impl_->Push(SubmitCommand{std::move(requests), listener, lane})) {
    listener->OnSubmitted(absl::UnavailableError("the server is stopping"));
  }
}

void EngineThread::Cancel(RequestId id, const absl::Status& status, FinishReason reason) {
  impl_->Push(CancelCommand{id, status, reason});
}

void EngineThread::Acknowledge(RequestId id, int64_t tokens) {
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->stopping) return;
    impl_->acknowledged[id] += tokens;
  }
  impl_->wake.NotifyOne();
}

absl::Status EngineThread::FlushPrefixCache(const std::string& only) {
  {
    const MutexLock lock(impl_->mutex);
    std::set<std::string>& flushes = impl_->signals.flushes;
    if (flushes.size() >= kMaxFlushes && flushes.count(only) == 0) {
      return absl::ResourceExhaustedError("too many namespaces wait to be emptied");
    }
    flushes.insert(only);
  }
  impl_->wake.NotifyOne();
  return absl::OkStatus();
}

const SnapshotStore* EngineThread::prefix_store() const { return impl_->engine->store(); }

void EngineThread::SavePrefixCache() {
  {
    const MutexLock lock(impl_->mutex);
    impl_->signals.save = true;
  }
  impl_->wake.NotifyOne();
}

void EngineThread::Drain() { impl_->draining = true; }

void EngineThread::Undrain() { impl_->draining = false; }

bool EngineThread::draining() const { return impl_->draining; }

bool EngineThread::idle() const {
  const MutexLock lock(impl_->mutex);
  return impl_->outstanding == 0;
}

bool EngineThread::Stop(double patience) {
  {
    const MutexLock lock(impl_->mutex);
    if (!impl_->has_thread && impl_->stopping) return true;
    impl_->stopping = true;
  }
  if (!impl_->has_thread) {
    impl_->EndLoop();
    return true;
  }
  impl_->wake.NotifyOne();
  if (impl_->thread_id.load() == std::this_thread::get_id()) return true;  // the owner joins
  {
    const auto start = std::chrono::steady_clock::now();
    const MutexLock lock(impl_->mutex);
    while (!impl_->stopped) {
      if (patience == kNever) {
        impl_->stopped_changed.Wait(impl_->mutex);
      } else if (!impl_->stopped_changed.WaitUntil(impl_->mutex,
                                                   start + SteadyDuration(patience))) {
        if (impl_->stopped) break;
        return false;
      }
    }
  }
  const MutexLock lock(impl_->join_mutex);
  if (impl_->thread.joinable()) impl_->thread.join();
  return true;
}

EngineStats EngineThread::stats() const {
  const MutexLock lock(impl_->mutex);
  return impl_->stats;
}

Seconds EngineThread::QueueSeconds() const { return impl_->queue_seconds; }

double EngineThread::HeartbeatAge() const { return SteadySeconds() - impl_->last_turn; }

absl::Status EngineThread::fatal() const {
  const MutexLock lock(impl_->mutex);
  return impl_->fatal;
}

RequestId EngineThread::NextId() { return impl_->next_id.fetch_add(1); }

Seconds EngineThread::Now() const { return impl_->clock(); }

}  // namespace fox
