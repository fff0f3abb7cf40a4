// fox-torture soak: fox-server at saturation for a long time, over gRPC and HTTP, with clients that
// cancel, hang up, stop reading, send nonsense and come back. Checks that every stream equals the
// solo run's answer and that memory, descriptors and threads do not grow after the warm-up. Memory
// is measured twice: anonymous resident pages (the system drops and reloads pages of files as it
// likes), and the heap in use as the server's metrics report it. If only the former grows, the
// allocator keeps freed memory.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fox/v1/inference.pb.h"
#include "tests/fixtures/http_client.h"
#include "tests/fixtures/raw_call.h"
#include "tests/fixtures/server_process.h"
#include "tests/fuzz/server/message_filler.h"
#include "tests/torture/part.h"
#include "tests/torture/raw_http2.h"
#include "tests/torture/solo_streams.h"

namespace fox {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSlopeSeconds = 300;   // shorter runs are too noisy for a slope
constexpr double kLongestWarmUp = 300;  // seconds

struct Soak {
  Part* part;
  ServerPorts ports;
  std::vector<SoloAnswer> answers;
  StreamCounts counts;
  std::atomic<bool> over{false};
  std::atomic<int64_t> calls{0}, stalls{0}, nonsense{0};
};

void ReadStreams(Soak* soak, uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!soak->over) {
    SoloReader reader(soak->ports, soak->part, &soak->counts);  // a connection of its own
    for (uint64_t i = random() % 20; i > 0 && !soak->over; --i) {
      const SoloAnswer& answer = soak->answers[random() % soak->answers.size()];
      const int64_t messages = random() % 3 == 0 ? static_cast<int64_t>(random() % 20) : -1;
      reader.Read(answer, random() % 2 == 1, messages);
      ++soak->calls;
    }
  }
}

// Asks for long answers and does not read them, until the server cuts them off or up to two seconds
// have passed.
void StallReads(Soak* soak, uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!soak->over) {
    HttpClient client(soak->ports.http);
    const nlohmann::json body = {{"prompt", "Once"},
                                 {"stream", true},
                                 {"max_tokens", 2000},
                                 {"logprobs", 5},
                                 {"ignore_eos", true}};
    client.SendRequest("POST", "/v1/completions", body.dump());
    for (uint64_t i = random() % 40; i > 0 && !soak->over; --i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (random() % 2 == 0) client.Reset();
    ++soak->stalls;
  }
}

// Sends malformed requests of all kinds, and the small requests that monitors send.
void SendNonsense(Soak* soak, uint64_t seed) {
  std::mt19937_64 random(seed);
  grpc::GenericStub stub(ConnectTo(soak->ports.grpc));
  const char* const methods[] = {"/fox.v1.Inference/Generate", "/fox.v1.Inference/Score",
                                 "/fox.v1.Tokenizer/Tokenize", "/fox.v1.Info/GetLoad",
                                 "/fox.v1.No/Such"};
  while (!soak->over) {
    RunCalls(4, [&](int64_t index, std::function<void()> done) {
      if (index >= 40) return false;
      v1::GenerateRequest request;
      std::string bytes(300, '\0');
      for (char& c : bytes) c = static_cast<char>(random() % 128);
      FuzzInput choices(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      MessageFiller(choices).Fill(&request);
      request.mutable_stopping()->set_max_tokens(3);
      std::string message = request.SerializeAsString();
      for (uint64_t i = random() % 4; i > 0; --i) message[random() % message.size()] = '~';
      RawCall::Start(
          stub, {methods[random() % std::size(methods)], message, 5000}, nullptr,
          [done = std::move(done)](const grpc::Status&, const RawCall::Metadata&) { done(); });
      return true;
    });
    HttpClient http(soak->ports.http);
    http.Send(random() % 2 == 0 ? "GET / HTTP/9\r\n\r\n" : "POST /v1/completions HTTP/1.1\r\n");
    HttpClient raw(soak->ports.grpc);
    raw.Send(RawHttp2Calls(methods[0], "nonsense", 4).substr(0, random() % 400));
    HttpClient metrics(soak->ports.metrics);
    const HttpReply reply = metrics.Get("/metrics");
    soak->part->Check(absl::StrContains(reply.body, "fox_"), "no metrics");
    HttpClient health(soak->ports.http);
    soak->part->Check(health.Get("/health").status == 200, "not healthy");
    soak->nonsense += 44;
  }
}

// Sends prompts of all lengths so that the server has made, before memory is measured, all that it
// keeps by the size of a step: matrix products by rows, and the buffer of logits.
void SendPromptsOfAllLengths(Soak* soak) {
  HttpClient client(soak->ports.http);
  std::string prompt;
  for (int words = 8; words <= 512; words += 8) {
    for (int i = 0; i < 8; ++i) prompt += " once";
    nlohmann::json body = {{"prompt", prompt}, {"max_tokens", 1}};
    if (words == 512) body.update({{"echo", true}, {"logprobs", 1}});
    soak->part->Check(client.Post("/v1/completions", body).status == 200, "no answer to a prompt");
  }
}

struct Sample {
  double hours;
  double anonymous, heap;  // bytes
  double descriptors, threads;
};

struct Slope {
  double per_hour = 0, error = 0;  // bytes; `error` is two standard errors

  void Describe(const std::string& what, Part* part) const {
    part->Set(absl::StrCat(what, "_mb_per_hour"), per_hour / 1e6);
    part->Set(absl::StrCat(what, "_two_sigma"), error / 1e6);
  }
  // True if a growth of more than a megabyte an hour is not shown.
  bool flat() const { return per_hour - error < 1e6; }
};

// Fits a line to the minima of the samples' twentieths: memory in use for a moment is no leak. The
// first twentieth, in which the load begins, is left out.
Slope FitLeast(const std::vector<Sample>& samples, double Sample::*memory) {
  constexpr size_t kParts = 20;
  std::vector<Sample> least;
  for (size_t part = 1; part < kParts && samples.size() >= kParts; ++part) {
    const auto begin = samples.begin() + static_cast<ptrdiff_t>(part * samples.size() / kParts);
    const auto end = samples.begin() + static_cast<ptrdiff_t>((part + 1) * samples.size() / kParts);
    least.push_back(*std::min_element(
        begin, end, [=](const Sample& a, const Sample& b) { return a.*memory < b.*memory; }));
  }
  if (least.empty()) return {};
  const auto n = static_cast<double>(least.size());
  double x = 0, y = 0, xx = 0, xy = 0, rest = 0;
  for (const Sample& s : least) x += s.hours / n, y += s.*memory / n;
  for (const Sample& s : least) {
    xx += (s.hours - x) * (s.hours - x);
    xy += (s.hours - x) * (s.*memory - y);
  }
  Slope slope;
  slope.per_hour = xy / xx;
  for (const Sample& s : least) {
    const double off = s.*memory - y - slope.per_hour * (s.hours - x);
    rest += off * off;
  }
  slope.error = 2 * std::sqrt(rest / (n - 2) / xx);
  return slope;
}

double AnonymousBytes(const ServerProcess& server) {
  std::ifstream file(absl::StrCat("/proc/", server.pid(), "/statm"));
  int64_t size = 0, resident = 0, of_files = 0;
  file >> size >> resident >> of_files;
  return static_cast<double>((resident - of_files) * sysconf(_SC_PAGESIZE));
}

// The heap in use by the server's metrics; 0: they do not contain it.
double HeapBytes(const ServerProcess& server) {
  const HttpReply reply = HttpClient(server.ports().metrics).Get("/metrics");
  const std::string name = "\nprocess_heap_bytes ";
  const size_t at = reply.body.find(name);
  return at == std::string::npos ? 0 : std::atof(reply.body.c_str() + at + name.size());
}

// A sample of everything except the heap.
Sample Look(const ServerProcess& server, Clock::time_point start) {
  return {SecondsSince(start) / 3600, AnonymousBytes(server), 0,
          static_cast<double>(CountDescriptors(server.pid())),
          static_cast<double>(CountThreads(server.pid()))};
}

// Loads the server for `seconds` and returns one sample a second (ten a second in short runs).
std::vector<Sample> Run(Soak* soak, const ServerProcess& server, int readers, double seconds) {
  soak->over = false;
  std::vector<std::thread> threads;
  const uint64_t seed = soak->part->seed() * 1000;
  for (int i = 0; i < readers; ++i) {
    threads.emplace_back(ReadStreams, soak, seed + static_cast<uint64_t>(i));
  }
  for (uint64_t i = 0; i < 3; ++i) threads.emplace_back(StallReads, soak, seed + 500 + i);
  threads.emplace_back(SendNonsense, soak, seed + 600);
  std::vector<Sample> samples;
  const Clock::time_point start = Clock::now();
  while (SecondsSince(start) < seconds && !soak->part->OutOfTime()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(seconds < 60 ? 100 : 1000));
    samples.push_back(Look(server, start));
    samples.back().heap = HeapBytes(server);
    soak->part->ReportProgress(static_cast<int64_t>(SecondsSince(start)),
                               static_cast<int64_t>(seconds));
  }
  soak->over = true;
  for (std::thread& thread : threads) thread.join();
  return samples;
}

// Waits for up to ten seconds until descriptors and threads are no more than `before` and returns a
// sample. `before` null: waits three seconds.
Sample AtRest(const ServerProcess& server, const Sample* before) {
  const Clock::time_point start = Clock::now();
  Sample now = Look(server, start);
  while (SecondsSince(start) < (before == nullptr ? 3 : 10)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    now = Look(server, start);
    if (before != nullptr && now.descriptors <= before->descriptors &&
        now.threads <= before->threads) {
      break;
    }
  }
  now.heap = HeapBytes(server);
  return now;
}

void CheckGrowth(Part* part, const std::vector<Sample>& samples, const Sample& before,
                 const Sample& after) {
  const double seconds = samples.empty() ? 0 : 3600 * samples.back().hours;
  const Slope anonymous = FitLeast(samples, &Sample::anonymous);
  const Slope heap = FitLeast(samples, &Sample::heap);
  part->Set("measured_seconds", seconds);
  part->Set("anonymous_mb", after.anonymous / 1e6);
  part->Set("anonymous_growth_mb", (after.anonymous - before.anonymous) / 1e6);
  anonymous.Describe("anonymous", part);
  part->Set("heap_mb", after.heap / 1e6);
  part->Set("heap_growth_mb", (after.heap - before.heap) / 1e6);
  heap.Describe("heap", part);
  part->Set("descriptors", {before.descriptors, after.descriptors});
  part->Set("threads", {before.threads, after.threads});
  part->Check(after.descriptors <= before.descriptors, "descriptors are left open");
  part->Check(after.threads <= before.threads + 4, "threads are left");
  part->CheckCost(after.heap > 0, "the heap is not in the metrics");
  if (seconds >= kSlopeSeconds) {
    part->CheckCost(anonymous.flat(), "memory grows by more than 1 MB an hour");
    part->CheckCost(heap.flat(), "the heap grows by more than 1 MB an hour");
  } else {
    part->CheckCost(after.anonymous - before.anonymous < 32e6, "memory grows");
  }
}

}  // namespace

int TortureSoak(const Arguments& arguments) {
  Part part("soak");
  std::string program, model;
  double minutes = 10;
  int readers = 12;
  FlagSet flags;
  flags.String("server", "FILE", "fox-server", &program);
  flags.String("model", "DIR", "model to serve", &model);
  flags.Double("minutes", "M", "duration; a quarter of it, at most five minutes, warms up", 0.05,
               1e5, &minutes);
  flags.Int("readers", "N", "streams at once", 1, 256, &readers);
  part.Parse(&flags, arguments);
  const double seconds = std::min(60 * minutes, part.seconds());
  ServerProcess server(Quiet(program, {"--model=" + model, "--device=cpu", "--threads=1",
                                       "--kv-cache-mb=16", "--max-num-seqs=6", "--stall-timeout=1",
                                       "--log-level=debug", "--log-format=json"}));
  Soak soak{&part, {}, {}, {}, {}, {}, {}, {}};
  if (server.WaitReady()) {
    soak.ports = server.ports();
    soak.answers = RunAlone(soak.ports);
  }
  part.Check(!soak.answers.empty(), "the solo run failed");
  if (!soak.answers.empty()) {
    const Clock::time_point start = Clock::now();
    const double warm_up = std::min(seconds / 4, kLongestWarmUp), measured = seconds - warm_up;
    if (measured >= kSlopeSeconds) SendPromptsOfAllLengths(&soak);
    Run(&soak, server, readers, std::max(warm_up - SecondsSince(start), warm_up / 2));
    const Sample before = AtRest(server, nullptr);
    const std::vector<Sample> samples = Run(&soak, server, readers, measured);
    CheckGrowth(&part, samples, before, AtRest(server, &before));
    soak.counts.Describe(&part);
    part.Set("streams", soak.calls.load());
    part.Set("stalled", soak.stalls.load());
    part.Set("nonsense", soak.nonsense.load());
    server.Signal(15);
    part.Check(server.WaitEnd(40) == 0, "the server does not stop with 0");
  }
  return part.Finish();
}

}  // namespace fox
