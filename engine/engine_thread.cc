// The thread around an Engine: a command queue in, sinks out. Sinks run without the lock, so they
// may call back. Read engine_thread.h first.
#include "engine/engine_thread.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace fox {
namespace {

constexpr Seconds kLongestWait = 0.1;  // between heartbeats

Seconds SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct SubmitCommand {
  Request request;
  OutputSink sink;
  std::promise<absl::Status> verdict;
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

  void Push(Command command);
  void Loop();
  std::vector<Command> TakeCommands();
  void Execute(Command& command);
  absl::Status SubmitHere(Request request, OutputSink sink);
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

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  std::vector<Command> commands;
  bool stopping = false;
  int64_t outstanding = 0;  // requests submitted and not yet ended or refused
  EngineStats stats;
  absl::Status fatal;

  std::mutex join_mutex;
  std::thread thread;
};

void EngineThread::Impl::Push(Command command) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (stopping) return;
    commands.push_back(std::move(command));
  }
  wake.notify_one();
}

void EngineThread::Impl::Loop() {
  thread_id = std::this_thread::get_id();
  for (;;) {
    std::vector<Command> taken = TakeCommands();
    last_turn = SteadySeconds();
    for (Command& command : taken) Execute(command);
    {
      const std::lock_guard<std::mutex> lock(mutex);
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
}

// Waits for a command, a deadline or the next heartbeat, but not while there is work.
std::vector<Command> EngineThread::Impl::TakeCommands() {
  const bool work = engine->HasWork();
  const Seconds wait = work ? 0.0 : std::min(kLongestWait, engine->NextDeadline() - clock());
  std::unique_lock<std::mutex> lock(mutex);
  if (!work && wait > 0.0) {
    wake.wait_for(lock, std::chrono::duration<double>(wait),
                  [this] { return stopping || !commands.empty(); });
  }
  return std::exchange(commands, {});
}

void EngineThread::Impl::Execute(Command& command) {
  if (auto* submit = std::get_if<SubmitCommand>(&command)) {
    submit->verdict.set_value(SubmitHere(std::move(submit->request), std::move(submit->sink)));
  } else if (auto* cancel = std::get_if<CancelCommand>(&command)) {
    engine->Cancel(cancel->id, cancel->status);
  } else if (auto* acknowledge = std::get_if<AcknowledgeCommand>(&command)) {
    engine->Acknowledge(acknowledge->id, acknowledge->tokens);
  }
}

absl::Status EngineThread::Impl::SubmitHere(Request request, OutputSink sink) {
  const RequestId id = request.id;
  absl::Status status = engine->Submit(std::move(request), clock());
  if (status.ok()) sinks.emplace(id, std::move(sink));
  const std::lock_guard<std::mutex> lock(mutex);
  if (!status.ok()) --outstanding;
  stats = engine->stats();
  return status;
}

void EngineThread::Impl::Deliver(std::vector<RequestOutput> outputs) {
  for (RequestOutput& output : outputs) {
    const auto found = sinks.find(output.id);
    if (found == sinks.end()) continue;
    if (!output.finish) {
      found->second(std::move(output));
      continue;
    }
    {
      // Out of the map first: the sink may submit the same id again.
      const OutputSink sink = std::move(found->second);
      sinks.erase(found);
      sink(std::move(output));
    }
    const std::lock_guard<std::mutex> lock(mutex);
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
    auto* submit = std::get_if<SubmitCommand>(&command);
    if (submit == nullptr) continue;
    submit->verdict.set_value(absl::UnavailableError("the server is stopping"));
    const std::lock_guard<std::mutex> lock(mutex);
    --outstanding;
  }
  Publish();
}

void EngineThread::Impl::Publish() {
  const std::lock_guard<std::mutex> lock(mutex);
  stats = engine->stats();
  fatal = engine->fatal();
}

EngineThread::EngineThread(std::unique_ptr<Engine> engine, Clock clock)
    : impl_(std::make_unique<Impl>(std::move(engine), std::move(clock))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Loop(); });
}

EngineThread::~EngineThread() { Stop(); }

absl::Status EngineThread::Submit(Request request, OutputSink sink) {
  if (draining()) return absl::UnavailableError("the server is draining");
  SubmitCommand command{std::move(request), std::move(sink), {}};
  std::future<absl::Status> verdict = command.verdict.get_future();
  const bool from_sink = impl_->thread_id.load() == std::this_thread::get_id();
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->stopping) return absl::UnavailableError("the server is stopping");
    ++impl_->outstanding;
    if (!from_sink) impl_->commands.push_back(std::move(command));
  }
  // A sink runs between two steps on the engine thread: nobody else could answer it.
  if (from_sink) return impl_->SubmitHere(std::move(command.request), std::move(command.sink));
  impl_->wake.notify_one();
  return verdict.get();
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
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->outstanding == 0;
}

void EngineThread::Stop() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_one();
  if (impl_->thread_id.load() == std::this_thread::get_id()) return;  // the owner joins
  const std::lock_guard<std::mutex> lock(impl_->join_mutex);
  if (impl_->thread.joinable()) impl_->thread.join();
}

EngineStats EngineThread::stats() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->stats;
}

double EngineThread::HeartbeatAge() const { return SteadySeconds() - impl_->last_turn; }

absl::Status EngineThread::fatal() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->fatal;
}

RequestId EngineThread::NextId() { return impl_->next_id.fetch_add(1); }

Seconds EngineThread::Now() const { return impl_->clock(); }

}  // namespace fox
