// fox-server on a GPU whose context breaks, that hangs, that is full or missing, and whose driver
// fails at any call: what clients see, when health turns, how and when the process ends.
//
// FAULT_SECONDS: the time for all tests together (140); a test omits the rounds for which none is
// left. FAULT_ROUNDS: how often a kernel traps at most (20). Their names do not begin with FOX_,
// because the server warns of such a variable that is no flag's.
#include "tests/faults/cuda_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/faulty_server.h"
#include "tests/fixtures/client_streams.h"

namespace fox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNotServingSeconds = 0.1, kEndSeconds = 1.0;
constexpr int kOutOfMemory = 2, kLaunchFailed = 719;  // of CUresult
constexpr int kStarters = 4;                          // servers that start at the same time
constexpr double kStartSeconds = 25;
const char* const kPrompt = "Once upon a time";

int Number(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr ? fallback : std::atoi(text);
}

double Elapsed() {
  static const int64_t begin = FaultPage::Now();
  return 1e-9 * static_cast<double>(FaultPage::Now() - begin);
}

// True if there is time left: each test may go on until `share` of FAULT_SECONDS is over.
bool HasTime(double share) { return Elapsed() < share * Number("FAULT_SECONDS", 140); }

ServerStart OnDevice(const SharedFaultPage& page, const std::vector<std::string>& flags = {
                                                      "--kv-cache-mb=512", "--max-num-seqs=32"}) {
  std::vector<std::string> all = {"--device=cuda"};
  all.insert(all.end(), flags.begin(), flags.end());
  return FaultyServer(page, all, reinterpret_cast<const void*>(&IsPreloaded));
}

void Send(const SharedFaultPage& page, DeviceCommand command) {
  page->done_ns = 0;
  page->command = command;
  syscall(SYS_futex, &page->command, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// The command's cudaError_t, or -1 after ten seconds.
int Done(const SharedFaultPage& page) {
  for (int i = 0; i < 10000 && page->done_ns == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return page->done_ns == 0 ? -1 : page->result.load();
}

// 16 streams; with a prompt of some thousand tokens they are still prefilled.
std::vector<StreamRequest> LongStreams(int words = 0) {
  std::string prompt = kPrompt;
  for (int i = 0; i < words; ++i) prompt += " there was a king and a queen";
  std::vector<StreamRequest> requests;
  for (size_t i = 0; i < 16; ++i) {
    requests.push_back({prompt + std::string(i, '.'), 20000, i % 4 == 3});
  }
  return requests;
}

double Seconds(int64_t from_ns, int64_t to_ns) {
  return 1e-9 * static_cast<double>(to_ns - from_ns);
}

// After a failure at `since_ns`, but for `patience` seconds: NOT_SERVING, UNAVAILABLE for all
// connected clients, exit code 70.
void ExpectEnd(ServerProcess& server, HealthWatch& health, ClientStreams* streams, int64_t since_ns,
               double patience) {
  EXPECT_EQ(server.WaitEnd(30).value_or(-1), 70) << server.log();
  const double not_serving = Seconds(since_ns, health.WaitNotServing()) - patience;
  const double end = Seconds(since_ns, EndedNs(server)) - patience;
  EXPECT_LE(not_serving, kNotServingSeconds) << server.log();
  EXPECT_LE(end, kEndSeconds + patience) << server.log();  // the driver stops running kernels
  std::printf("NOT_SERVING after %.3f s, the end after %.3f s\n", not_serving, end);
  if (streams == nullptr) return;
  for (const AnswerEnd& answer : streams->Join()) {
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << answer.DebugString();
  }
}

// At a random moment of a busy, a prefilling and an idle server.
TEST(CudaFaultsTest, AStickyErrorEndsTheProcess) {
  std::mt19937 random(11);
  for (int round = 0; round < Number("FAULT_ROUNDS", 20) && HasTime(0.45); ++round) {
    SCOPED_TRACE(round);
    SharedFaultPage page;
    ServerProcess server(OnDevice(page));
    ASSERT_TRUE(server.WaitReady(kStartSeconds)) << server.log();
    HealthWatch health(server);
    ASSERT_TRUE(health.WaitServing());
    Send(page, DeviceCommand::kPrepare);
    ASSERT_EQ(Done(page), 0);

    const bool idle = round % 4 == 3, prefills = round % 4 == 2;
    ClientStreams streams(server.ports(),
                          idle ? std::vector<StreamRequest>() : LongStreams(prefills ? 400 : 0));
    if (!prefills) streams.WaitText();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 100000));
    const bool writes = round % 2 == 1;
    // Times count from the driver's report of the error, which takes it 0.1 to 0.4 s.
    Send(page, writes ? DeviceCommand::kWrite : DeviceCommand::kTrap);
    EXPECT_EQ(Done(page), writes ? 700 : 719);
    ExpectEnd(server, health, &streams, page->done_ns, 0);
    EXPECT_THAT(server.log(), HasSubstr("the engine failed"));
  }
}

TEST(CudaFaultsTest, ADeviceThatHangsEndsTheProcess) {
  for (const bool idle : {false, true}) {
    SCOPED_TRACE(::testing::Message() << (idle ? "idle" : "busy"));
    SharedFaultPage page;
    ServerProcess server(
        OnDevice(page, {"--kv-cache-mb=512", "--max-num-seqs=32", "--step-timeout=1"}));
    ASSERT_TRUE(server.WaitReady(kStartSeconds)) << server.log();
    HealthWatch health(server);
    ASSERT_TRUE(health.WaitServing());
    Send(page, DeviceCommand::kPrepare);
    ASSERT_EQ(Done(page), 0);
    std::optional<ClientStreams> streams;
    if (!idle) streams.emplace(server.ports(), LongStreams()).WaitText();
    Send(page, DeviceCommand::kSpin);
    ASSERT_EQ(Done(page), 0);
    if (idle) streams.emplace(server.ports(), LongStreams());
    ExpectEnd(server, health, &*streams, page->command_ns, 1);  // the time that a step may take
    EXPECT_THAT(server.log(), HasSubstr("a step hangs"));
  }
}

// The log has one line that says why, and no port.
void ExpectRefusal(ServerProcess& server) {
  const std::string log = server.log();
  EXPECT_EQ(server.WaitEnd(0).value_or(-1), 78) << log;
  EXPECT_THAT(log, HasSubstr("fox-server: "));
  EXPECT_THAT(log, Not(HasSubstr("listening")));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST(CudaFaultsTest, NoDeviceIsTold) {
  SharedFaultPage page;
  ServerStart start = OnDevice(page);
  start.variables.push_back("CUDA_VISIBLE_DEVICES=");
  ServerProcess server(start);
  EXPECT_FALSE(server.WaitReady(kStartSeconds));
  ExpectRefusal(server);
  EXPECT_THAT(server.log(), HasSubstr("--device: "));
}

TEST(CudaFaultsTest, ADeviceThatIsFullIsTold) {
  SharedFaultPage page;
  const ServerStart full = OnDevice(page, {"--gpu-memory-utilization=1"});
  ServerProcess first(full);
  ASSERT_TRUE(first.WaitReady(kStartSeconds)) << first.log();
  ServerProcess second(full);
  EXPECT_FALSE(second.WaitReady(kStartSeconds)) << second.log();
  ExpectRefusal(second);
  ServerProcess third(OnDevice(page, {"--kv-cache-mb=8192"}));
  EXPECT_FALSE(third.WaitReady(kStartSeconds)) << third.log();
  ExpectRefusal(third);
  HealthWatch health(first);
  EXPECT_TRUE(health.WaitServing());
}

// One stream, so that it has one right answer; a failed call that is not needed changes no token.
TEST(CudaFaultsTest, ADriverThatFailsWhileServingEndsTheProcess) {
  constexpr int kLeastRounds = 8;  // even if no time is left, until a fault has ended a server
  std::mt19937 random(12);
  const StreamRequest request{kPrompt, 1000, false};
  std::string expected;
  int64_t calls = 0;
  int ended = 0;
  for (int round = 0; HasTime(0.75) || (ended == 0 && round < kLeastRounds); ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    SharedFaultPage page;
    ServerProcess server(OnDevice(page));
    ASSERT_TRUE(server.WaitReady(kStartSeconds)) << server.log();
    HealthWatch health(server);
    ASSERT_TRUE(health.WaitServing());
    // The first round only counts.
    const int64_t call = round == 0 ? 0 : 1 + static_cast<int64_t>(random()) % calls;
    SCOPED_TRACE(testing::Message() << "call " << call);
    page.Arm(FaultKind::kDriverCall, call, kLaunchFailed);
    ClientStreams streams(server.ports(), {request});
    const AnswerEnd answer = streams.Join().front();
    if (round == 0) {
      ASSERT_TRUE(answer.status.ok()) << answer.DebugString();
      expected = answer.text;
      calls = page->calls;
      ASSERT_GT(calls, 1000);
      continue;
    }
    EXPECT_EQ(expected.compare(0, answer.text.size(), answer.text), 0) << answer.DebugString();
    if (answer.status.ok()) {
      EXPECT_EQ(answer.text, expected);
      continue;
    }
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << answer.DebugString();
    ExpectEnd(server, health, nullptr, page->failed_ns, 0);
    ++ended;
  }
  EXPECT_GT(ended, 0);
}

// The answer of a server without a fault.
std::string SoundAnswer() {
  SharedFaultPage page;
  ServerProcess server(OnDevice(page));
  EXPECT_TRUE(server.WaitReady(kStartSeconds)) << server.log();
  const AnswerEnd answer = ReadAnswer(server.ports(), {kPrompt, 32});
  EXPECT_TRUE(answer.status.ok()) << answer.DebugString();
  return answer.text;
}

// True if the server starts and answers as without a fault; else it must say why not.
bool StartsOrRefuses(const SharedFaultPage& page, const std::string& expected) {
  ServerProcess server(OnDevice(page));
  if (!server.WaitReady(kStartSeconds)) {
    ExpectRefusal(server);
    return false;
  }
  page.Disarm();
  const AnswerEnd answer = ReadAnswer(server.ports(), {kPrompt, 32});
  EXPECT_TRUE(answer.status.ok()) << answer.DebugString() << server.log();
  EXPECT_EQ(answer.text, expected);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitEnd(30).value_or(-1), 0) << server.log();
  return true;
}

struct Calls {
  const char* functions;  // a part of their names
  int error;
  std::atomic<int64_t> made{0};  // calls of a start, as far as counted; 0: not counted yet
};

// The first, second, fourth, ... call of each kind, as long as there is time.
TEST(CudaFaultsTest, ADriverThatFailsAtTheStartIsToldOrSurvived) {
  Calls kinds[] = {{"cuMemAlloc", kOutOfMemory},      {"cuMemHostAlloc", kOutOfMemory},
                   {"EndCapture", kLaunchFailed},     {"GraphInstantiate", kOutOfMemory},
                   {"cuEventCreate", kOutOfMemory},   {"cuStreamCreate", kOutOfMemory},
                   {"cuLaunchKernel", kLaunchFailed}, {"cuMemcpy", kLaunchFailed},
                   {"cuLibrary", kOutOfMemory},       {"cuDevice", kOutOfMemory},
                   {"cuStream", kLaunchFailed},       {"", kOutOfMemory}};
  const std::string expected = SoundAnswer();
  std::atomic<size_t> next{0}, refused{0};
  std::vector<std::thread> starters;
  for (int i = 0; i < kStarters; ++i) {
    starters.emplace_back([&] {
      while (HasTime(0.95)) {
        const size_t mine = next++;
        Calls& calls = kinds[mine % std::size(kinds)];
        const int64_t call = int64_t{1} << (mine / std::size(kinds));
        if (call > 1 << 16) return;
        if (calls.made > 0 && call > calls.made) continue;
        SCOPED_TRACE(testing::Message() << "'" << calls.functions << "' " << call);
        SharedFaultPage page;
        std::strncpy(page->driver_calls, calls.functions, sizeof(page->driver_calls) - 1);
        page.Arm(FaultKind::kDriverCall, call, calls.error);
        const bool starts = StartsOrRefuses(page, expected);
        if (page->failed == 0) {
          calls.made = std::max<int64_t>(1, page->calls.load());
        } else {
          refused += starts ? 0 : 1;
        }
      }
    });
  }
  for (std::thread& starter : starters) starter.join();
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace fox
