// fox-torture overload: measures the server's peak rate, then sends ten times as many calls without
// waiting for answers. Checks that refusals come at once and say when to retry, that every accepted
// call is answered whole, and that goodput stays near the peak.
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "fox/v1/inference.pb.h"
#include "tests/fixtures/raw_call.h"
#include "tests/fixtures/test_server.h"
#include "tests/torture/part.h"
#include "tests/torture/release_watch.h"

namespace fox {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kTokens = 20;
constexpr char kPrompt[] = "overload";

// Ends of calls as the clients saw them, and times in milliseconds.
struct Outcome {
  std::atomic<int64_t> finished{0}, refused{0}, dropped{0}, ended{0};
  Mutex mutex;
  std::vector<double> refused_ms ABSL_GUARDED_BY(mutex), first_ms ABSL_GUARDED_BY(mutex);
};

void StartCall(Part* part, grpc::GenericStub& stub, Outcome* outcome, std::function<void()> done) {
  const v1::GenerateRequest request = GreedyRequest(kPrompt, kTokens);
  const auto text = std::make_shared<std::string>();
  const auto start = Clock::now();
  RawCall::Start(
      stub, {"/fox.v1.Inference/GenerateStream", request.SerializeAsString(), 120000},
      [outcome, text, start](const std::string& bytes) {
        v1::GenerateDelta event;
        event.ParseFromString(bytes);
        if (event.has_delta() && text->empty()) {
          const MutexLock lock(outcome->mutex);
          outcome->first_ms.push_back(1000 * SecondsSince(start));
        }
        *text += event.delta().text();
        return true;
      },
      [=, done = std::move(done)](const grpc::Status& status, const RawCall::Metadata& trailing) {
        if (status.ok() && *text == ExpectedText(kPrompt, kTokens)) {
          ++outcome->finished;
        } else if (status.error_code() == grpc::RESOURCE_EXHAUSTED && text->empty()) {
          ++outcome->refused;
          part->Check(trailing.count("retry-after-ms") == 1,
                      "a refusal does not say when to come back");
          const MutexLock lock(outcome->mutex);
          outcome->refused_ms.push_back(1000 * SecondsSince(start));
        } else {
          ++outcome->dropped;
          part->Check(false, absl::StrCat("accepted and dropped: ", status.error_code(), " ",
                                          status.error_message()));
        }
        ++outcome->ended;
        done();
      });
}

// Measures requests per second with `clients` clients, each of which waits for its answer.
double Peak(Part* part, const Stubs& stubs, double seconds, int clients) {
  Outcome outcome;
  const auto start = Clock::now();
  RunCalls(clients, [&](int64_t index, std::function<void()> done) {
    if (SecondsSince(start) > seconds) return false;
    StartCall(part, *stubs[static_cast<size_t>(index) % stubs.size()], &outcome, std::move(done));
    return true;
  });
  return static_cast<double>(outcome.finished) / SecondsSince(start);
}

// Starts a call every 1 / `rate` seconds without waiting for earlier ones (open loop).
void Offer(Part* part, const Stubs& stubs, double rate, double seconds, Outcome* outcome) {
  const auto start = Clock::now();
  int64_t sent = 0;
  const auto all = static_cast<int64_t>(rate * seconds);
  while (sent < all) {
    for (const auto due = static_cast<int64_t>(SecondsSince(start) * rate); sent < due; ++sent) {
      StartCall(part, *stubs[static_cast<size_t>(sent) % stubs.size()], outcome, [] {});
    }
    part->ReportProgress(sent, all);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  part->Set("offered_per_second", static_cast<double>(sent) / SecondsSince(start));
  part->Set("goodput_per_second", static_cast<double>(outcome->finished) / SecondsSince(start));
  while (outcome->ended < sent) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  part->Set("offered", sent);
}

}  // namespace

int TortureOverload(const Arguments& arguments) {
  Part part("overload");
  double minutes = 10, times = 10, refusal_ms = 10, goodput = 0.9;
  FlagSet flags;
  flags.Double("minutes", "M", "duration of the overload", 0.001, 1e5, &minutes);
  flags.Double("times", "X", "offered rate over the peak rate", 1, 1000, &times);
  flags.Double("refusal-ms", "MS", "limit of the 99th percentile of a refusal's time", 0, 1e6,
               &refusal_ms);
  flags.Double("goodput", "SHARE", "least goodput as a share of the peak", 0, 1, &goodput);
  part.Parse(&flags, arguments);
  const double seconds = std::min(60 * minutes, part.seconds());

  TestCoreOptions options = TortureOptions(nullptr);
  options.max_num_seqs = 8;
  options.max_num_queued_reqs = 16;
  TestServer server(options);
  server.script->step_delay_us = 4000;
  const Stubs stubs = ConnectStubs(server.server->port(), 8);
  const double peak = Peak(&part, stubs, std::clamp(seconds / 10, 1.0, 20.0), 16);
  const int64_t refused_before = server.core->refusals().count();
  Outcome outcome;
  Offer(&part, stubs, times * peak, seconds, &outcome);
  part.Set("peak_per_second", peak);
  part.Set("refused", outcome.refused.load());
  part.Set("refused_on_arrival", server.core->refusals().count() - refused_before);
  part.Set("finished", outcome.finished.load());
  part.Set("accepted_and_dropped", outcome.dropped.load());
  const MutexLock lock(outcome.mutex);
  const double p99 = Percentile(outcome.refused_ms, 0.99);
  part.Set("refusal_ms_p50", Percentile(outcome.refused_ms, 0.5));
  part.Set("refusal_ms_p99", p99);
  part.Set("first_token_ms_p99", Percentile(outcome.first_ms, 0.99));
  const double kept = static_cast<double>(outcome.finished) / seconds / peak;
  part.Set("goodput_of_peak", kept);
  part.Check(outcome.refused > outcome.finished, "hardly a call was refused");
  part.CheckCost(p99 <= refusal_ms, "refusals take longer than promised");
  part.CheckCost(kept >= goodput, "goodput falls below what was promised");
  part.Check(server.WaitIdle(), "not everything came back");
  return part.Finish();
}

}  // namespace fox
