// The thread around an Engine: a command queue in, sinks out. Sinks run without the lock, so they
// may call back. Read engine_thread.h first.
#include "engine/engine_thread.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/mutex.h"

namespace fox {
namespace {

constexpr Seconds kLongestWait = 0.1;  // between heartbeats

Seconds SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct SubmitCommand {
  std::vector<Request> requests;
  OutputSink sink;
  SubmitCallback on_result;
};
struct CancelCommand {
  RequestId id;
  absl::Status status;
};
struct AcknowledgeCommand {
  RequestId id;
  int64_t tokens;
};
using Command = std::variant<SubmitCommand, CancelCommand, AcknowledgeCommand>;

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
  std::vector<Command> TakeCommands();
  void ExecuteCommands();
  void Execute(Command& command);
  void SubmitOnEngineThread(SubmitCommand& command);
  void Deliver(std::vector<RequestOutput> outputs);
  void EndAll();
  void Publish();

  // Used by the engine thread alone.
  const std::unique_ptr<Engine> engine;
  std::map<RequestId, OutputSink> sinks;

  const Clock clock;
  std::atomic<RequestId> next_id{1};
  std::atomic<double> last_turn{0.0};  // steady clock
  std::atomic<bool> draining{false};
  std::atomic<std::thread::id> thread_id{};

  mutable Mutex mutex;
  CondVar wake;
  std::vector<Command> commands ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  // Requests submitted and not yet ended or refused.
  int64_t outstanding ABSL_GUARDED_BY(mutex) = 0;
  EngineStats stats ABSL_GUARDED_BY(mutex);
  absl::Status fatal ABSL_GUARDED_BY(mutex);

  Mutex join_mutex;
  std::thread thread ABSL_GUARDED_BY(join_mutex);
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
  pthread_setname_np(pthread_self(), "engine");  // for whoever looks at a process that is stuck
  for (;;) {
    ExecuteCommands();
    {
      const MutexLock lock(mutex);
      if (stopping) break;
    }
    const Seconds now = clock();
    if (engine->HasWork() || engine->NextDeadline() <= now) {
      std::vector<RequestOutput> outputs = engine->Step(now);
      Publish();
      Deliver(std::move(outputs));
    }
  }
  EndAll();
  last_turn = std::numeric_limits<double>::infinity();  // has ended, which is no hang
}

// Waits for a command, a deadline or the next heartbeat, but not while there is work.
std::vector<Command> EngineThread::Impl::TakeCommands() {
  const Seconds wait =
      engine->HasWork() ? 0.0 : std::clamp(engine->NextDeadline() - clock(), 0.0, kLongestWait);
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                         std::chrono::duration<double>(wait));
  const MutexLock lock(mutex);
  while (wait > 0.0 && !stopping && commands.empty()) {
    if (!wake.WaitUntil(mutex, until)) break;
  }
  return std::exchange(commands, {});
}

void EngineThread::Impl::ExecuteCommands() {
  std::vector<Command> taken = TakeCommands();
  last_turn = SteadySeconds();
  for (Command& command : taken) Execute(command);
}

void EngineThread::Impl::Execute(Command& command) {
  if (auto* submit = std::get_if<SubmitCommand>(&command)) {
    SubmitOnEngineThread(*submit);
  } else if (auto* cancel = std::get_if<CancelCommand>(&command)) {
    engine->Cancel(cancel->id, cancel->status);
  } else if (auto* acknowledge = std::get_if<AcknowledgeCommand>(&command)) {
    engine->Acknowledge(acknowledge->id, acknowledge->tokens);
  }
}

void EngineThread::Impl::SubmitOnEngineThread(SubmitCommand& command) {
  std::vector<RequestId> taken;
  absl::Status status;
  for (Request& request : command.requests) {
    const RequestId id = request.id;
    status = engine->Submit(std::move(request), clock());
    if (!status.ok()) break;
    taken.push_back(id);
  }
  for (RequestId id : taken) {
    if (status.ok()) {
      sinks.emplace(id, command.sink);
    } else {
      engine->Cancel(id, status);  // before its first step; nobody hears of its end
    }
  }
  {
    const MutexLock lock(mutex);
    outstanding -= static_cast<int64_t>(command.requests.size() - taken.size());
    stats = engine->stats();
  }
  command.on_result(status);
}

void EngineThread::Impl::Deliver(std::vector<RequestOutput> outputs) {
  for (RequestOutput& output : outputs) {
    const bool ended = output.finish.has_value();
    if (const auto found = sinks.find(output.id); found != sinks.end()) {
      found->second(std::move(output));
      if (ended) sinks.erase(found);
    }
    if (!ended) continue;
    const MutexLock lock(mutex);
    --outstanding;
  }
}

void EngineThread::Impl::EndAll() {
  for (const auto& [id, sink] : sinks) {
    engine->Cancel(id, absl::UnavailableError("the server is stopping"));
  }
  // Plans in flight come in, and slots are released.
  while (engine->HasWork()) {
    last_turn = SteadySeconds();
    Deliver(engine->Step(clock()));
  }
  for (Command& command : TakeCommands()) {
    const auto* submit = std::get_if<SubmitCommand>(&command);
    if (submit == nullptr) continue;
    submit->on_result(absl::UnavailableError("the server is stopping"));
    const MutexLock lock(mutex);
    outstanding -= static_cast<int64_t>(submit->requests.size());
  }
  Publish();
}

void EngineThread::Impl::Publish() {
  const MutexLock lock(mutex);
  stats = engine->stats();
  fatal = engine->fatal();
}

EngineThread::EngineThread(std::unique_ptr<Engine> engine, Clock clock)
    : impl_(std::make_unique<Impl>(std::move(engine), std::move(clock))) {
  const MutexLock lock(impl_->join_mutex);
  impl_->thread = std::thread([impl = impl_.get()] { impl->Loop(); });
}

EngineThread::~EngineThread() { Stop(); }

void EngineThread::Submit(std::vector<Request> requests, const OutputSink& sink,
                          const SubmitCallback& on_result) {
  if (draining()) return on_result(absl::UnavailableError("the server is draining"));
  if (!impl_->Push(SubmitCommand{std::move(requests), sink, on_result})) {
    on_result(absl::UnavailableError("the server is stopping"));
  }
}

void EngineThread::Cancel(RequestId id, const absl::Status& status) {
  impl_->Push(CancelCommand{id, status});
}

void EngineThread::Acknowledge(RequestId id, int64_t tokens) {
  impl_->Push(AcknowledgeCommand{id, tokens});
}

void EngineThread::Drain() { impl_->draining = true; }

bool EngineThread::draining() const { return impl_->draining; }

bool EngineThread::idle() const {
  const MutexLock lock(impl_->mutex);
  return impl_->outstanding == 0;
}

void EngineThread::Stop() {
  {
    const MutexLock lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.NotifyOne();
  if (impl_->thread_id.load() == std::this_thread::get_id()) return;  // the owner joins
  const MutexLock lock(impl_->join_mutex);
  if (impl_->thread.joinable()) impl_->thread.join();
}

EngineStats EngineThread::stats() const {
  const MutexLock lock(impl_->mutex);
  return impl_->stats;
}

double EngineThread::HeartbeatAge() const { return SteadySeconds() - impl_->last_turn; }

absl::Status EngineThread::fatal() const {
  const MutexLock lock(impl_->mutex);
  return impl_->fatal;
}

RequestId EngineThread::NextId() { return impl_->next_id.fetch_add(1); }

Seconds EngineThread::Now() const { return impl_->clock(); }

}  // namespace fox
