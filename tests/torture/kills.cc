// fox-torture kills: starts fox-server again and again on the same port, loads it over gRPC and
// HTTP, and ends it by SIGKILL or SIGTERM at a random moment of its life. Checks that every stream
// equals the solo run's answer or its beginning, that SIGTERM ends the server with 0 within its
// grace, and that the next server is ready soon.
#include <signal.h>

#include <algorithm>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/fixtures/server_process.h"
#include "tests/torture/part.h"
#include "tests/torture/solo_streams.h"

namespace fox {
namespace {

using Random = std::mt19937_64;

constexpr double kStopSlack = kInstrumented ? 20 : 1.5;  // seconds after the grace

struct Rounds {
  explicit Rounds(Part* owner) : part(owner) {}

  Part* const part;
  std::string program;
  std::vector<std::string> flags;
  int clients = 9;
  double ready_limit = 15;
  std::vector<SoloAnswer> answers;
  ServerPorts ports{0, 0, 0};  // the previous server's
  StreamCounts counts;
  Random random;
  int64_t kills = 0, stops = 0, while_loading = 0, port_taken = 0;
  std::vector<double> ready_seconds, stop_seconds;
};

// Threads that read streams over gRPC and HTTP, one after another, until the object is destroyed.
class Load {
 public:
  Load(Rounds* rounds, const ServerPorts& ports, uint64_t seed) {
    for (int i = 0; i < rounds->clients; ++i) {
      threads_.emplace_back([this, rounds, ports, seed, i] {
        Random random(seed * 64 + static_cast<uint64_t>(i));
        SoloReader reader(ports, rounds->part, &rounds->counts);
        while (!over_) {
          const SoloAnswer& answer = rounds->answers[random() % rounds->answers.size()];
          // A server that is gone refuses at once.
          if (!reader.Read(answer, i % 2 == 1)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
        }
      });
    }
  }
  ~Load() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

double Uniform(Random* random, double from, double to) {
  return std::uniform_real_distribution<double>(from, to)(*random);
}

void SleepFor(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(std::max(seconds, 0.0)));
}

// Waits for the end of a server and returns its exit code. After `seconds` the part has failed, and
// the server is killed. `what` names the cause in the message.
int EndOf(Part* part, ServerProcess* server, double seconds, const char* what) {
  const std::optional<int> code = server->WaitEnd(seconds);
  if (code.has_value()) return *code;
  part->Check(false, absl::StrCat(what, " does not end the server"));
  server->Signal(SIGKILL);
  return server->WaitEnd(60).value_or(-1);
}

// Runs one server from its start to its end by SIGKILL (`kill`) or SIGTERM.
void RunRound(Rounds* rounds, bool kill) {
  Random& random = rounds->random;
  const double grace = kill ? 5 : std::vector<double>{0.05, 0.3, 3}[random() % 3];
  std::vector<std::string> flags = rounds->flags;
  flags.push_back(absl::StrCat("--shutdown-timeout=", grace));
  ServerProcess server(Quiet(rounds->program, flags, rounds->ports));
  const bool loading = random() % 8 == 0;
  const double usual = Percentile(rounds->ready_seconds, 0.5);
  if (loading) {
    // Before the program has installed its handler, SIGTERM kills it without an exit code of ours.
    while (!kill && !server.Handles(SIGTERM) && server.age() < 5) SleepFor(0.001);
    SleepFor(Uniform(&random, 0, usual));
    ++rounds->while_loading;
  } else if (!server.WaitReady(rounds->ready_limit)) {
    const int code = EndOf(rounds->part, &server, 5, "a failed start");
    // The kernel may have given the port to another process's outgoing connection.
    rounds->part->Check(code == 78, absl::StrCat("a restart fails with ", code));
    ++rounds->port_taken;
    rounds->ports = {0, 0, 0};
    return;
  }
  std::optional<Load> load;
  if (!loading) {
    rounds->ready_seconds.push_back(server.ready_seconds());
    rounds->ports = server.ports();
    load.emplace(rounds, server.ports(), random());
    SleepFor(Uniform(&random, 0, 0.5));
  }
  const double sent = server.age();
  server.Signal(kill ? SIGKILL : SIGTERM);
  const int code = EndOf(rounds->part, &server, grace + kStopSlack, kill ? "SIGKILL" : "SIGTERM");
  if (!kill) {
    rounds->part->Check(code == 0, absl::StrCat("SIGTERM ends the server with ", code));
    rounds->stop_seconds.push_back(server.age() - sent);
  }
  load.reset();
  ++(kill ? rounds->kills : rounds->stops);
}

void Report(Rounds* rounds) {
  Part& part = *rounds->part;
  rounds->counts.Describe(&part);
  part.Set("kills", rounds->kills);
  part.Set("stops", rounds->stops);
  part.Set("while_loading", rounds->while_loading);
  part.Set("port_taken", rounds->port_taken);
  part.Set("ready_seconds_p50", Percentile(rounds->ready_seconds, 0.5));
  part.Set("ready_seconds_max", Percentile(rounds->ready_seconds, 1));
  part.Set("stop_seconds_p50", Percentile(rounds->stop_seconds, 0.5));
  part.Set("stop_seconds_max", Percentile(rounds->stop_seconds, 1));
  part.Check(rounds->counts.cut > 0 || part.OutOfTime(), "no stream was cut");
  part.Check(rounds->counts.whole > 0 || part.OutOfTime(), "no stream came to its end");
}

}  // namespace

int TortureKills(const Arguments& arguments) {
  Part part("kills");
  Rounds rounds(&part);
  int64_t times = 1000;
  std::string model;
  FlagSet flags;
  flags.String("server", "FILE", "fox-server", &rounds.program);
  flags.String("model", "DIR", "model to serve", &model);
  flags.Int("times", "N", "number of kills, and of stops", 1, 1 << 30, &times);
  flags.Int("clients", "N", "streams at once", 3, 256, &rounds.clients);
  flags.Double("ready", "S", "time limit of a server's start", 0.1, 600, &rounds.ready_limit);
  part.Parse(&flags, arguments);
  rounds.random.seed(part.seed());
  // The pool is small so that requests are preempted.
  rounds.flags = {"--model=" + model, "--device=cpu",     "--threads=1",
                  "--kv-cache-mb=8",  "--max-num-seqs=6", "--log-level=warning"};
  {
    ServerProcess alone(Quiet(rounds.program, rounds.flags));
    if (alone.WaitReady()) rounds.answers = RunAlone(alone.ports());
    rounds.ready_seconds.push_back(alone.ready_seconds());
  }
  part.Check(!rounds.answers.empty(), "the solo run failed");
  // A round whose port was taken counts neither as a kill nor as a stop.
  for (int64_t i = 0; rounds.stops < times && i < 4 * times && !part.OutOfTime(); ++i) {
    if (rounds.answers.empty()) break;
    RunRound(&rounds, /*kill=*/rounds.kills == rounds.stops);
    part.ReportProgress(rounds.kills + rounds.stops, 2 * times);
  }
  part.Check(rounds.stops == times || part.OutOfTime(), "servers did not start");
  Report(&rounds);
  return part.Finish();
}

}  // namespace fox
