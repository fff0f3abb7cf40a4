// Twenty thousand open streams, five thousand of them generating, on few connections, from a
// process of their own: what one costs in memory, whether each gets its own text, and how soon all
// is free when the client cancels them or dies.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "fox/v1/inference.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "tests/fixtures/child_process.h"
#include "tests/fixtures/raw_call.h"
#include "tests/fixtures/test_server.h"
#include "tests/torture/part.h"
#include "tests/torture/release_watch.h"

namespace fox {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStreamsOfAConnection = 1000;
constexpr int kNoHurry = 1000000000;  // ms: the queue of a slow machine is hours long

struct Sizes {
  int port = 0;  // of the server; 0: this is the server
  int open = 20000;
  int generating = 5000;
};

// ---- the client's process -----------------------------------------------------------------------

// Opens the streams; SIGTERM cancels them. Its exit code says whether all was
// well: 3: a text was wrong, 4: a stream ended by itself.
int RunClient(const Sizes& sizes) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, nullptr);  // before there are threads
  std::vector<std::shared_ptr<grpc::ClientContext>> calls;
  std::atomic<int> ended{0}, wrong{0}, failed{0};
  std::atomic<bool> cancelling{false};
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (int i = 0; i < sizes.open; ++i) {
    if (i % kStreamsOfAConnection == 0) {
      stubs.push_back(std::make_unique<grpc::GenericStub>(ConnectTo(sizes.port)));
    }
    const std::string prompt = absl::StrCat("stream ", i);
    const v1::GenerateRequest request = GreedyRequest(prompt, 100000);
    const auto expected = std::make_shared<ScriptedText>(prompt);
    const auto read = [&wrong, expected](const std::string& bytes) {
      v1::GenerateDelta event;
      if (!event.ParseFromString(bytes)) ++wrong;
      for (const char c : event.delta().text()) {
        if (c != expected->Take()) ++wrong;
      }
      return true;
    };
    const auto end = [&](const grpc::Status& status, const RawCall::Metadata&) {
      if (!cancelling) {
        std::fprintf(stderr, "streams: a stream ended with %d %s\n", status.error_code(),
                     status.error_message().c_str());
        ++failed;
      }
      ++ended;
    };
    calls.push_back(RawCall::Start(
        *stubs.back(), {"/fox.v1.Inference/GenerateStream", request.SerializeAsString(), kNoHurry},
        read, end));
  }
  int signal = 0;
  sigwait(&term, &signal);
  cancelling = true;
  for (const auto& call : calls) call->TryCancel();
  while (ended < sizes.open) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return wrong > 0 ? 3 : failed > 0 ? 4 : 0;
}

// ---- the server's process -----------------------------------------------------------------------

// Streams that have ended or were refused.
int64_t Ended(const TestServer& server) {
  const EngineStats stats = server.engine->stats();
  return stats.finished + stats.failed + stats.cancelled + stats.expired + stats.aborted +
         stats.rejected + server.core->refusals().count();
}

// False: one has ended, or the time is over.
bool WaitOpen(Part* part, const TestServer& server, const Sizes& sizes) {
  const int64_t before = Ended(server);
  while (!part->OutOfTime() && Ended(server) == before) {
    const EngineStats stats = server.engine->stats();
    part->ReportProgress(stats.running + stats.paused + stats.waiting, sizes.open);
    if (stats.running + stats.paused >= sizes.generating &&
        stats.running + stats.paused + stats.waiting >= sizes.open) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

// How long another client waits for an answer meanwhile, at most, in milliseconds.
double SlowestAnswer(const TestServer& server) {
  const auto stub = v1::Info::NewStub(ConnectTo(server.server->port()));
  double slowest = 0;
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    v1::Load load;
    const auto start = Clock::now();
    if (!stub->GetLoad(&context, {}, &load).ok()) return 1e9;
    slowest = std::max(slowest, 1000 * SecondsSince(start));
  }
  return slowest;
}

// Opens them all, looks, and ends them: by cancelling each, or by the client's death.
void OpenAndEnd(Part* part, TestServer* server, const Sizes& sizes, bool dies) {
  const std::string how = dies ? "client_death" : "cancel_all";
  const int64_t before = ResidentBytes(getpid());
  const auto start = Clock::now();
  ChildProcess client(
      {{"/proc/self/exe", "streams", absl::StrCat("--port=", server->server->port()),
        absl::StrCat("--open=", sizes.open)},
       {},
       "/dev/stderr"});
  const bool open = WaitOpen(part, *server, sizes);
  part->Check(open || part->OutOfTime(), "the streams did not all open");
  if (!open) return;
  part->Set("streams", sizes.open);
  part->Set(how + "_open_seconds", SecondsSince(start));
  const int64_t tokens = server->engine->stats().generated_tokens;
  const auto watched = Clock::now();
  // Waits until each generating stream has got some tokens on average.
  while (!part->OutOfTime() &&
         server->engine->stats().generated_tokens < tokens + 10 * int64_t{sizes.generating}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  part->Set(how + "_tokens_per_second",
            static_cast<double>(server->engine->stats().generated_tokens - tokens) /
                SecondsSince(watched));
  part->Set(how + "_slowest_other_answer_ms", SlowestAnswer(*server));
  const double each = static_cast<double>(ResidentBytes(getpid()) - before) / sizes.open;
  const EngineStats stats = server->engine->stats();
  part->Check(stats.running + stats.paused + stats.waiting >= sizes.open, "a stream was lost");
  const double own = CpuSeconds(getpid());
  const auto ending = Clock::now();
  client.Signal(dies ? SIGKILL : SIGTERM);
  const bool idle = server->WaitIdle(60);
  const double taken = SecondsSince(ending);
  part->Set(how + "_seconds", taken);
  part->Set(how + "_server_cpu_seconds", CpuSeconds(getpid()) - own);
  part->Check(idle, "not everything came back");
  part->CheckCost(taken <= 2, how + " took more than 2 s");
  const int code = client.WaitEnd(60).value_or(-1);
  part->Check(dies || code == 0, absl::StrCat("the client says ", code));
  if (dies) return;
  part->Set("bytes_per_stream", each);
  part->CheckCost(each <= 32 << 10, "a stream takes more than 32 KiB");
}

}  // namespace

int TortureStreams(const Arguments& arguments) {
  Part part("streams");
  Sizes sizes;
  FlagSet flags;
  flags.Int("open", "N", "open streams", 1, 1 << 20, &sizes.open);
  flags.Int("generating", "N", "those of them that generate", 1, 65536, &sizes.generating);
  flags.Int("port", "PORT", "be the client of that server", 0, 65535, &sizes.port);
  part.Parse(&flags, arguments);
  if (sizes.port != 0) return RunClient(sizes);
  sizes.generating = std::min(sizes.generating, sizes.open);

  ReleaseWatch releases;
  TestCoreOptions options = TortureOptions(&releases);
  options.max_num_seqs = sizes.generating;
  options.max_num_batched_tokens = std::max(sizes.generating, 1024);
  options.max_model_len = 1 << 17;
  options.num_pages = int64_t{sizes.generating} * 2 * 64;
  options.max_num_queued_reqs = 2 * sizes.open;
  options.limits.max_calls = 2 * sizes.open;
  options.limits.max_call_bytes = int64_t{1} << 30;
  GrpcServerOptions port;
  port.max_streams = 65536;
  TestServer server(options, port);
  server.script->step_delay_us = 50000;
  part.Set("generating", sizes.generating);
  OpenAndEnd(&part, &server, sizes, /*dies=*/false);
  OpenAndEnd(&part, &server, sizes, /*dies=*/true);
  part.Set("slowest_release_steps", releases.slowest());
  part.Check(releases.slowest() <= 2, "pages came back after more than two steps");
  return part.Finish();
}

}  // namespace fox
