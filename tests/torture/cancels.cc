// fox-torture cancels: a storm of calls over gRPC and HTTP that end early, at random moments, in
// every way there is: cancellation, deadline, reset, closed connection. Checks that all pages are
// free within two steps of a call's end, that all text which was read is right, and that the server
// answers correctly afterwards.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/request/step_observer.h"
#include "fox/v1/inference.pb.h"
#include "tests/fixtures/raw_call.h"
#include "tests/fixtures/test_server.h"
#include "tests/torture/part.h"
#include "tests/torture/raw_http2.h"

namespace fox {
namespace {

using Random = std::mt19937_64;

constexpr char kStream[] = "/fox.v1.Inference/GenerateStream";
constexpr char kUnary[] = "/fox.v1.Inference/Generate";

// Counts the plans between a request's end and the release of its slot.
class ReleaseWatch final : public StepObserver {
 public:
  void BeforeSubmit(const StepPlan& plan) override;
  void OnFinish(const Request& request, const Finish& finish) override;

  // The largest count of all requests so far. Any thread may call it.
  int64_t slowest() const { return slowest_; }

 private:
  // Used by the engine's thread alone.
  int64_t plans_ = 0;
  std::map<int32_t, RequestId> owners_;  // by slot
  std::map<RequestId, int32_t> slots_;   // slots that hold pages
  std::map<RequestId, int64_t> ended_;   // ended requests that hold pages: plans_ at their end
  std::atomic<int64_t> slowest_{0};
};

void ReleaseWatch::BeforeSubmit(const StepPlan& plan) {
  ++plans_;
  for (const int32_t slot : plan.release_slots) {
    const auto owner = owners_.find(slot);
    if (owner == owners_.end()) continue;
    if (const auto ended = ended_.find(owner->second); ended != ended_.end()) {
      slowest_ = std::max(slowest_.load(), plans_ - ended->second);
      ended_.erase(ended);
    }
    slots_.erase(owner->second);
    owners_.erase(owner);
  }
  for (const PlannedSequence& sequence : plan.sequences) {
    owners_[sequence.slot] = sequence.id;
    slots_[sequence.id] = sequence.slot;
  }
  // Slots that are still not released count, too.
  for (const auto& [id, when] : ended_) slowest_ = std::max(slowest_.load(), plans_ - when);
}

void ReleaseWatch::OnFinish(const Request& request, const Finish& finish) {
  static_cast<void>(finish);
  if (slots_.count(request.id) > 0) ended_[request.id] = plans_;
}

// A pool of half the pages that all sequences could take.
TestCoreOptions ShortOfPages(ReleaseWatch* watch) {
  TestCoreOptions options;
  options.max_num_seqs = 64;
  options.max_model_len = 512;
  options.num_pages = 512;  // half of what all sequences at full length would take
  options.max_num_batched_tokens = 1024;
  options.max_num_queued_reqs = 256;
  options.max_queue_seconds = 0;
  options.observers = {watch};
  return options;
}

struct Storm {
  Part* part;
  TestServer* server;
  const ReleaseWatch* releases;
  int64_t calls;  // goal: calls that ended early
  std::atomic<int64_t> cancelled{0}, late{0}, hung_up{0}, refused{0}, finished{0};

  int64_t early() const { return cancelled + late + hung_up; }
  bool over() const { return early() >= calls || part->OutOfTime(); }
};

std::string Prompt(Random* random) {
  std::string prompt = absl::StrCat("storm ", (*random)() % 100000, " ");
  prompt.append((*random)() % 10 == 0 ? (*random)() % 250 : (*random)() % 20, 'x');
  return prompt;
}

v1::GenerateRequest FoxRequest(const std::string& prompt, Random* random) {
  const uint64_t n = (*random)() % 4 == 0 ? 1 + (*random)() % 3 : 1;
  v1::GenerateRequest request = GreedyRequest(prompt, 1 + static_cast<uint32_t>((*random)() % 200));
  request.mutable_sampling()->set_n(static_cast<uint32_t>(n));
  return request;
}

// The texts that one stream has brought so far, compared with the expected text.
class Reading {
 public:
  Reading(std::string prompt, int64_t cancel_after)
      : prompt_(std::move(prompt)), left_(cancel_after) {}

  // Adds a GenerateDelta. False: it cannot be parsed, or its text is wrong.
  bool Fox(const std::string& bytes) {
    v1::GenerateDelta event;
    if (!event.ParseFromString(bytes)) return false;
    return !event.has_delta() || Grow(event.delta().index(), event.delta().text());
  }
  // True if the client reads on after this message.
  bool Continue() { return left_ < 0 || left_-- > 0; }

 private:
  bool Grow(uint32_t index, const std::string& text) {
    if (texts_.size() <= index) texts_.resize(index + 1);
    texts_[index] += text;
    return texts_[index] == ExpectedText(prompt_, texts_[index].size());
  }

  const std::string prompt_;
  int64_t left_;
  std::vector<std::string> texts_;
};

void CountEnd(Storm* storm, const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::OK:
      ++storm->finished;
      break;
    case grpc::CANCELLED:
      ++storm->cancelled;
      break;
    case grpc::DEADLINE_EXCEEDED:
      ++storm->late;
      break;
    case grpc::RESOURCE_EXHAUSTED:
      ++storm->refused;
      break;
    default:
      storm->part->Check(false,
                         absl::StrCat("status ", status.error_code(), " ", status.error_message()));
  }
}

// Starts one call with the gRPC library that is cancelled at once or after some messages, or that
// has a short deadline. False: the storm is over.
bool StartGrpc(Storm* storm, grpc::GenericStub& stub, int64_t index, std::function<void()> done) {
  if (storm->over()) return false;
  Random random(storm->part->seed() << 32 ^ static_cast<uint64_t>(index));
  const std::string prompt = Prompt(&random);
  const bool unary = random() % 4 == 0;
  RawRequest request{unary ? kUnary : kStream, FoxRequest(prompt, &random).SerializeAsString(),
                     60000};
  const uint64_t way = random() % 8;
  if (way < 3) request.deadline_ms = 1 + static_cast<int>(random() % 30);
  const auto reading = std::make_shared<Reading>(
      prompt, way >= 3 && way < 7 ? static_cast<int64_t>(random() % 30) : -1);
  RawCall::Start(
      stub, request,
      [storm, unary, reading](const std::string& bytes) {
        storm->part->Check(unary || reading->Fox(bytes), "a stream brought what it must not");
        return reading->Continue();
      },
      [storm, done = std::move(done)](const grpc::Status& status, const RawCall::Metadata&) {
        CountEnd(storm, status);
        storm->part->ReportProgress(storm->early(), storm->calls);
        done();
      });
  return true;
}

// Reads up to five pieces of the answer.
void ReadSome(HttpClient* client, Random* random) {
  for (uint64_t i = (*random)() % 6; i > 0 && client->ReadMore(/*milliseconds=*/5); --i) {
  }
}

// Sends one HTTP request and closes the connection, by FIN or reset, after some events or none.
void HangUpOnHttp(Storm* storm, Random* random) {
  HttpClient client(storm->server->http->port());
  const std::string prompt = Prompt(random);
  const nlohmann::json body = {{"prompt", prompt},
                               {"temperature", 0},
                               {"stream", (*random)() % 4 != 0},
                               {"max_tokens", 1 + (*random)() % 200}};
  client.SendRequest("POST", "/v1/completions", body.dump());
  ReadSome(&client, random);
  storm->part->Check(!absl::StrContains(client.received(), " 500 "), "HTTP answered 500");
  if ((*random)() % 2 == 0) client.Reset();
  ++storm->hung_up;
}

// Sends up to eight gRPC calls on one connection, resets some of them one by one, and closes the
// connection by FIN or reset.
void HangUpOnGrpc(Storm* storm, Random* random) {
  HttpClient client(storm->server->server->port());
  const int calls = 1 + static_cast<int>((*random)() % 8);
  const std::string prompt = Prompt(random);
  std::string bytes = RawHttp2Calls(kStream, FoxRequest(prompt, random).SerializeAsString(), calls);
  for (int call = 0; call < calls; ++call) {
    if ((*random)() % 3 == 0) bytes += RawHttp2Reset(call);
  }
  client.Send((*random)() % 8 == 0 ? bytes.substr(0, (*random)() % bytes.size()) : bytes);
  ReadSome(&client, random);
  if ((*random)() % 2 == 0) client.Reset();
  storm->hung_up += calls;
}

// Checks that nothing is held after the storm and that both endpoints still answer.
void CheckCalm(Storm* storm) {
  Part& part = *storm->part;
  part.Check(storm->server->WaitIdle(), "not everything came back");
  const EngineStats stats = storm->server->engine->stats();
  part.Set("pages_free", stats.free_pages);
  part.Set("pages", stats.num_pages);
  part.Set("steps", stats.steps);
  part.Set("preemptions", stats.preemptions);
  part.Set("slowest_release_steps", storm->releases->slowest());
  part.Check(storm->releases->slowest() <= 2, "pages came back after more than two steps");
  const std::string calm = ExpectedText("calm", 20);
  HttpClient client(storm->server->http->port());
  const HttpReply reply =
      client.Post("/v1/completions", {{"prompt", "calm"}, {"temperature", 0}, {"max_tokens", 20}});
  part.Check(reply.status == 200 && reply.Json()["choices"][0]["text"] == calm,
             "after the storm HTTP is not as before");
  OpenStream stream(storm->server->Connect(), GreedyRequest("calm", 20));
  part.Check(stream.End().ok() && stream.text == calm, "after the storm gRPC is not as before");
}

}  // namespace

int TortureCancels(const Arguments& arguments) {
  Part part("cancels");
  int64_t calls = 1000000;
  int open = 256, hanging = 4;
  FlagSet flags;
  flags.Int("calls", "N", "calls that end early", 1, int64_t{1} << 40, &calls);
  flags.Int("open", "N", "gRPC calls open at once", 1, 4096, &open);
  flags.Int("hanging", "N", "threads of clients that hang up", 1, 256, &hanging);
  part.Parse(&flags, arguments);

  ReleaseWatch releases;
  TestServer server(ShortOfPages(&releases));
  server.script->step_delay_us = 100;
  Storm storm{&part, &server, &releases, calls, {}, {}, {}, {}, {}};
  std::vector<std::thread> clients;
  for (int i = 0; i < hanging; ++i) {
    clients.emplace_back([&storm, i, &part] {
      Random random(part.seed() * 1000 + static_cast<uint64_t>(i));
      while (!storm.over()) {
        (i % 2 == 0 ? HangUpOnHttp : HangUpOnGrpc)(&storm, &random);
      }
    });
  }
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (int i = 0; i < 8; ++i) {
    stubs.push_back(std::make_unique<grpc::GenericStub>(ConnectTo(server.server->port())));
  }
  RunCalls(open, [&](int64_t index, std::function<void()> done) {
    return StartGrpc(&storm, *stubs[static_cast<size_t>(index) % stubs.size()], index,
                     std::move(done));
  });
  for (std::thread& client : clients) client.join();
  part.Set("ended_early", storm.early());
  part.Set("cancelled", storm.cancelled.load());
  part.Set("deadlines", storm.late.load());
  part.Set("hung_up", storm.hung_up.load());
  part.Set("refused", storm.refused.load());
  part.Set("finished", storm.finished.load());
  CheckCalm(&storm);
  return part.Finish();
}

}  // namespace fox
