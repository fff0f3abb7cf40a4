// fox-server over an executor that fails at its n-th call, that hangs or that computes NaN for one
// stream: what clients see by both endpoints, when health turns, how and when the process ends.
//
// FOX_FAULTS=all: each call, and times as an idle machine has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/faults/faulty_server.h"
#include "tests/fixtures/client_streams.h"

namespace fox {
namespace {

using ::testing::HasSubstr;

constexpr int kTokens = 24;

bool All() {
  const char* all = std::getenv("FOX_FAULTS");
  return all != nullptr && std::string(all) == "all";
}

// Seconds; a machine that does something else, too, takes longer.
double NotServingSeconds() { return All() ? 0.1 : 1.0; }
double EndSeconds() { return All() ? 1.0 : 3.0; }

const std::vector<StreamRequest> kStreams = {
    {"Once upon a time", kTokens, false}, {"The king", kTokens, true},
    {"It was late", kTokens, false},      {"I had never", kTokens, false},
    {"On the next day", kTokens, true},   {"She", kTokens, false},
};

ServerStart Faulty(const SharedFaultPage& page, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> all = {"--device=cpu", "--dtype=f32", "--max-num-seqs=8",
                                  "--kv-cache-mb=64"};
  all.insert(all.end(), flags.begin(), flags.end());
  return FaultyServer(page, all, nullptr, "fox-server-faulty");
}

void Arm(SharedFaultPage* page, ExecutorFault fault, int64_t call) {
  (*page)->executor_fault = fault;
  page->Arm(FaultKind::kExecutor, call);
}

class ExecutorFaultsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    SharedFaultPage page;
    ServerProcess server(Faulty(page));
    ASSERT_TRUE(server.WaitReady()) << server.log();
    for (const StreamRequest& request : kStreams) {  // one after the other
      ClientStreams alone(server.ports(), {request});
      sound_.push_back(alone.Join().front());
      ASSERT_TRUE(sound_.back().status.ok()) << sound_.back().DebugString();
      ASSERT_GT(sound_.back().text.size(), 20u) << sound_.back().DebugString();
    }
  }

  // All streams end with UNAVAILABLE after a beginning of the right answer, and the process ends
  // with 70.
  static void ExpectEnd(ServerProcess& server, HealthWatch& health, ClientStreams& streams,
                        const SharedFaultPage& page, double patience) {
    EXPECT_EQ(server.WaitEnd(30 + patience).value_or(-1), 70) << server.log();
    const std::vector<AnswerEnd> ends = streams.Join();
    for (size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(ends[i].status.error_code(), grpc::StatusCode::UNAVAILABLE)
          << ends[i].DebugString();
      EXPECT_TRUE(absl::StartsWith(sound_[i].text, ends[i].text)) << ends[i].DebugString();
    }
    ASSERT_GE(page->failed.load(), 1);
    const double not_serving =
        1e-9 * static_cast<double>(health.WaitNotServing() - page->failed_ns);
    const double end = 1e-9 * static_cast<double>(EndedNs(server) - page->failed_ns);
    EXPECT_LE(not_serving, NotServingSeconds() + patience) << server.log();
    EXPECT_LE(end, EndSeconds() + patience) << server.log();
    slowest_not_serving_ = std::max(slowest_not_serving_, not_serving - patience);
    slowest_end_ = std::max(slowest_end_, end - patience);
  }

  static void FailOnce(ExecutorFault fault, int64_t call,
                       const std::vector<std::string>& flags = {}, double patience = 0) {
    SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << ", call " << call);
    SharedFaultPage page;
    ServerProcess server(Faulty(page, flags));
    ASSERT_TRUE(server.WaitReady()) << server.log();
    HealthWatch health(server);
    ASSERT_TRUE(health.WaitServing());
    Arm(&page, fault, call);
    ClientStreams streams(server.ports(), kStreams);
    ExpectEnd(server, health, streams, page, patience);
    EXPECT_THAT(server.log(),
                HasSubstr(fault == ExecutorFault::kHang ? "a step hangs" : "the engine failed"));
  }

  static void TearDownTestSuite() {
    std::printf("NOT_SERVING after at most %.3f s, the end after at most %.3f s\n",
                slowest_not_serving_, slowest_end_);
  }

  static std::vector<AnswerEnd> sound_;
  static double slowest_not_serving_, slowest_end_;
};

std::vector<AnswerEnd> ExecutorFaultsTest::sound_;
double ExecutorFaultsTest::slowest_not_serving_ = 0, ExecutorFaultsTest::slowest_end_ = 0;

TEST_F(ExecutorFaultsTest, AFailureAtAnyCallEndsTheProcess) {
  std::vector<int64_t> calls = {1, 2, 17};
  if (All()) {
    calls.clear();
    for (int64_t call = 1; call <= kTokens; ++call) calls.push_back(call);
  }
  for (const ExecutorFault fault :
       {ExecutorFault::kSubmit, ExecutorFault::kCollect, ExecutorFault::kReadback}) {
    for (const int64_t call : calls) FailOnce(fault, call);
  }
}

TEST_F(ExecutorFaultsTest, AStepThatHangsEndsTheProcess) {
  constexpr double kStepTimeout = 1.5;
  FailOnce(ExecutorFault::kHang, 1, {"--step-timeout=1.5"}, kStepTimeout);
  FailOnce(ExecutorFault::kHang, 9, {"--step-timeout=1.5"}, kStepTimeout);
}

// Its neighbours, by either endpoint, have the same answers as alone, and the server goes on.
TEST_F(ExecutorFaultsTest, NanEndsItsOwnStreamAlone) {
  SharedFaultPage page;
  ServerProcess server(Faulty(page));
  ASSERT_TRUE(server.WaitReady()) << server.log();
  HealthWatch health(server);
  ASSERT_TRUE(health.WaitServing());
  for (const int64_t call : {1, 3, 10, 0}) {  // 0: none
    SCOPED_TRACE(call);
    Arm(&page, ExecutorFault::kNotFinite, call);
    ClientStreams streams(server.ports(), kStreams);
    const std::vector<AnswerEnd> ends = streams.Join();
    int failed = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "stream " << i);
      if (ends[i].status.ok()) {
        EXPECT_EQ(ends[i].text, sound_[i].text);
        continue;
      }
      ++failed;
      EXPECT_EQ(ends[i].status.error_code(), grpc::StatusCode::INTERNAL) << ends[i].DebugString();
      EXPECT_THAT(ends[i].status.error_message(), HasSubstr("numerical failure"));
      EXPECT_TRUE(absl::StartsWith(sound_[i].text, ends[i].text)) << ends[i].DebugString();
    }
    EXPECT_EQ(failed, call > 0 ? 1 : 0);
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitEnd(60).value_or(-1), 0) << server.log();
}

}  // namespace
}  // namespace fox
