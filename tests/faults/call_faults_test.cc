// fox-server while its n-th allocation, thread or system call fails: at its start and while it
// serves. It goes on as if nothing had failed, or refuses the request, or ends with the documented
// exit code and a line that says why; never a wrong token, never a crash, never a hang.
//
// FOX_FAULTS=all: each n; a number: that many n of each kind; else a few. FOX_FAULT_JOBS: servers
// at the same time (2).
#include "tests/faults/call_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fox/v1/inference.pb.h"
#include "fox/v1/tokenizer.pb.h"
#include "nlohmann/json.hpp"
#include "tests/faults/faulty_server.h"
#include "tests/fixtures/client_streams.h"
#include "tests/fixtures/raw_call.h"

namespace fox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kPatienceSeconds = 60;
constexpr int64_t kForEver = std::numeric_limits<int32_t>::max();

// The largest number of calls of a kind that fail: `few`, or as FOX_FAULTS says.
int64_t Most(int64_t few) {
  const char* faults = std::getenv("FOX_FAULTS");
  if (faults == nullptr) return few;
  return std::string(faults) == "all" ? std::numeric_limits<int64_t>::max() : std::atoll(faults);
}

size_t Jobs() {
  const char* jobs = std::getenv("FOX_FAULT_JOBS");
  return jobs == nullptr ? 2 : static_cast<size_t>(std::max(1, std::atoi(jobs)));
}

// The kind of call that fails, and how often.
struct Fault {
  std::string name;
  FaultKind kind = FaultKind::kSystemCall;
  std::vector<int32_t> system_calls;
  int error = 0;
  int64_t calls = 1;  // in a row
};

void Prepare(const Fault& fault, SharedFaultPage* page) {
  (*page)->traps_system_calls = !fault.system_calls.empty();
  std::fill(std::begin((*page)->system_calls), std::end((*page)->system_calls), -1);
  std::copy(fault.system_calls.begin(), fault.system_calls.end(),
            std::begin((*page)->system_calls));
}

ServerStart UnderTest(const SharedFaultPage& page) {
  return FaultyServer(page, {"--device=cpu", "--kv-cache-mb=64", "--max-num-seqs=4", "--threads=1"},
                      reinterpret_cast<const void*>(&CanFailCalls));
}

// ---- a client's scenario: each kind of request, one after the other
// ---------------------------------

struct Step {
  std::string name;
  grpc::Status status;
  std::string answer;  // without the parts that differ between two runs
};

constexpr int kTokens = 12;

Step Stream(const ServerProcess& server, bool http) {
  const AnswerEnd end = ReadAnswer(server.ports(), {"Once upon a time", kTokens, http});
  return {http ? "a stream by HTTP" : "a stream", end.status, end.text};
}

Step Tokenize(const std::shared_ptr<grpc::Channel>& channel) {
  v1::TokenizeRequest request;
  request.set_text("A cat sat on the mat.");
  Step step{"tokenize", {}, ""};
  step.status =
      Exchange(channel, "/fox.v1.Tokenizer/Tokenize", request.SerializeAsString(), &step.answer);
  return step;
}

Step Score(const std::shared_ptr<grpc::Channel>& channel) {
  v1::ScoreRequest request;
  request.set_text("Once upon a time there was");
  std::string bytes;
  Step step{"score", {}, ""};
  step.status = Exchange(channel, "/fox.v1.Inference/Score", request.SerializeAsString(), &bytes);
  v1::ScoreResponse response;
  response.ParseFromString(bytes);
  response.clear_request_id();
  response.clear_perf();
  if (step.status.ok()) step.answer = response.SerializeAsString();
  return step;
}

Step Refuse(const std::shared_ptr<grpc::Channel>& channel) {
  v1::GenerateRequest request;
  request.set_text("x");
  request.mutable_sampling()->set_temperature(-1);
  const grpc::Status status =
      Exchange(channel, "/fox.v1.Inference/Generate", request.SerializeAsString());
  if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) {
    return {"a wrong request", status, ""};
  }
  return {"a wrong request", grpc::Status::OK, status.error_message()};
}

Step Complete(const ServerProcess& server) {
  using Json = nlohmann::json;
  const HttpReply answer =
      HttpClient(server.ports().http)
          .Post("/v1/completions", {{"prompt", {"Once upon a time", "The king"}},
                                    {"max_tokens", kTokens},
                                    {"temperature", 0},
                                    {"logprobs", 2}});
  Step step{"a completion by HTTP", StatusOf(answer), ""};
  if (!step.status.ok()) return step;
  Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_discarded()) step.answer = json["choices"].dump();
  return step;
}

// A call that hangs is the last one.
std::vector<Step> RunScenario(const ServerProcess& server) {
  const auto channel = ConnectTo(server.ports().grpc);
  const std::function<Step()> kSteps[] = {
      [&] { return Tokenize(channel); }, [&] { return Stream(server, /*http=*/false); },
      [&] { return Score(channel); },    [&] { return Refuse(channel); },
      [&] { return Complete(server); },  [&] { return Stream(server, /*http=*/true); },
  };
  std::vector<Step> steps;
  for (const auto& step : kSteps) {
    steps.push_back(step());
    if (steps.back().status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) break;
  }
  return steps;
}

// Each step has the answer that it had in `sound`, or a beginning of it and an error that permits a
// retry.
void ExpectSoundOrRefused(const std::vector<Step>& steps, const std::vector<Step>& sound) {
  ASSERT_LE(steps.size(), sound.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const std::string told = absl::StrCat(step.name, ": ", step.status.error_message());
    if (step.status.ok()) {
      EXPECT_EQ(step.answer, sound[i].answer) << told;
      continue;
    }
    EXPECT_TRUE(absl::StartsWith(sound[i].answer, step.answer)) << told << " " << step.answer;
    const grpc::StatusCode code = step.status.error_code();
    EXPECT_TRUE(code == grpc::StatusCode::UNAVAILABLE ||
                code == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << code << " " << told;
  }
}

// ---- servers ------------------------------------------------------------------------------------

// The calls to fail: all of 1 to `count` if these are at most `most`, else the first ones, which
// fail rarely in practice, and the rest at even distances.
std::vector<int64_t> CallsToFail(int64_t count, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < std::min(count, most); ++i) {
    out.push_back(1 + i * (count - 1) / std::max<int64_t>(1, std::min(count, most) - 1));
  }
  return out;
}

void ForEach(const std::vector<int64_t>& calls, const std::function<void(int64_t)>& body) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(Jobs(), calls.size()); ++i) {
    threads.emplace_back([&] {
      for (size_t mine = next++; mine < calls.size(); mine = next++) body(calls[mine]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class CallFaultsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    SharedFaultPage page;
    ServerProcess server(UnderTest(page));
    ASSERT_TRUE(server.WaitReady()) << server.log();
    sound_ = RunScenario(server);
    for (const Step& step : sound_) {
      ASSERT_TRUE(step.status.ok()) << step.name << ": " << step.status.error_message();
    }
  }

  // A line says why; other threads' lines may follow it.
  static void ExpectReason(const std::string& log) {
    EXPECT_TRUE(log.find("fox-server: ") != std::string::npos ||
                log.find(" error ") != std::string::npos)
        << log;
  }

  // Counts the calls of a start and of a scenario.
  static void Count(const Fault& fault, int64_t* at_start, int64_t* serving) {
    SharedFaultPage page;
    Prepare(fault, &page);
    page.Arm(fault.kind, 0);
    ServerProcess server(UnderTest(page));
    const bool ready = server.WaitReady();
    if (server.WaitEnd(0) == kNoSeccomp) GTEST_SKIP() << "this system permits no seccomp filter";
    ASSERT_TRUE(ready) << server.log();
    *at_start = page->calls;
    page.Arm(fault.kind, 0);
    ExpectSoundOrRefused(RunScenario(server), sound_);
    server.Signal(SIGTERM);
    EXPECT_EQ(server.WaitEnd(kPatienceSeconds).value_or(-1), 0) << server.log();
    *serving = page->calls;
  }

  static void FailAtStart(const Fault& fault, int64_t call) {
    SCOPED_TRACE(fault.name + " at the start, call " + std::to_string(call));
    SharedFaultPage page;
    Prepare(fault, &page);
    page.Arm(fault.kind, call, fault.error, fault.calls);
    ServerProcess server(UnderTest(page));
    if (server.WaitReady(kPatienceSeconds)) {
      page.Disarm();
      return FinishServing(server);
    }
    // Starts differ by some calls: the last call of one start may come in another start when all
    // threads run but the ports are not logged yet; the lines about the engine are in the log by
    // then.
    const int code = server.WaitEnd(0).value_or(-1);
    if (code == 70) {
      EXPECT_THAT(server.log(), HasSubstr("--grpc-port="));
    } else {
      EXPECT_EQ(code, 78) << server.log();
      EXPECT_THAT(server.log(), Not(HasSubstr("listening on")));
      // The reason stands alone, not behind all flags.
      if (fault.kind == FaultKind::kThread) {
        EXPECT_THAT(server.log(), Not(HasSubstr("--grpc-port=")));
      }
    }
    ExpectReason(server.log());
  }

  static void FailServing(const Fault& fault, int64_t call) {
    SCOPED_TRACE(fault.name + " while serving, call " + std::to_string(call));
    SharedFaultPage page;
    Prepare(fault, &page);
    ServerProcess server(UnderTest(page));
    ASSERT_TRUE(server.WaitReady(kPatienceSeconds)) << server.log();
    page.Arm(fault.kind, call, fault.error, fault.calls);
    FinishServing(server);
  }

  // All calls, then a signal.
  static void FinishServing(ServerProcess& server) {
    ExpectSoundOrRefused(RunScenario(server), sound_);
    server.Signal(SIGTERM);
    const std::optional<int> code = server.WaitEnd(kPatienceSeconds);
    EXPECT_TRUE(code.has_value()) << "it hangs: " << server.log();
    EXPECT_TRUE(code == 0 || code == 70) << code.value_or(-1) << "\n" << server.log();
    if (code == 70) ExpectReason(server.log());
  }

  void Fail(const Fault& fault, int64_t most_at_start, int64_t most_serving) {
    int64_t at_start = 0, serving = 0;
    Count(fault, &at_start, &serving);
    if (IsSkipped() || HasFatalFailure()) return;
    std::printf("%s: %lld calls at the start, %lld while serving\n", fault.name.c_str(),
                static_cast<long long>(at_start), static_cast<long long>(serving));
    ForEach(CallsToFail(at_start, Most(most_at_start)),
            [&](int64_t call) { FailAtStart(fault, call); });
    ForEach(CallsToFail(serving, Most(most_serving)),
            [&](int64_t call) { FailServing(fault, call); });
  }

  static std::vector<Step> sound_;
};

std::vector<Step> CallFaultsTest::sound_;

TEST_F(CallFaultsTest, Allocations) { Fail({"allocation", FaultKind::kAllocation, {}}, 8, 8); }

TEST_F(CallFaultsTest, AllAllocationsFromOneOn) {
  Fail({"allocations", FaultKind::kAllocation, {}, 0, kForEver}, 4, 4);
}

TEST_F(CallFaultsTest, Threads) { Fail({"thread", FaultKind::kThread, {}}, 12, 2); }

TEST_F(CallFaultsTest, SystemCalls) {
  const Fault kFaults[] = {
      {"read", FaultKind::kSystemCall, {SYS_read, SYS_pread64}, EIO},
      {"open", FaultKind::kSystemCall, {SYS_openat, SYS_openat2}, EMFILE},
      {"stat", FaultKind::kSystemCall, {SYS_newfstatat, SYS_fstat, SYS_getdents64}, EIO},
      {"mmap", FaultKind::kSystemCall, {SYS_mmap, SYS_mprotect}, ENOMEM},
      {"write", FaultKind::kSystemCall, {SYS_write, SYS_writev}, EIO},
      {"socket",
       FaultKind::kSystemCall,
       {SYS_socket, SYS_bind, SYS_listen, SYS_setsockopt},
       ENOBUFS},
      {"accept", FaultKind::kSystemCall, {SYS_accept4}, ENOMEM},
      {"epoll", FaultKind::kSystemCall, {SYS_epoll_create1, SYS_epoll_ctl, SYS_eventfd2}, EMFILE},
      {"wait", FaultKind::kSystemCall, {SYS_epoll_wait, SYS_epoll_pwait, SYS_poll}, EINTR},
      {"send", FaultKind::kSystemCall, {SYS_sendmsg, SYS_sendto, SYS_recvmsg}, ECONNRESET},
  };
  for (const Fault& fault : kFaults) {
    Fail(fault, 2, 2);
    if (IsSkipped()) return;
  }
}

}  // namespace
}  // namespace fox
