// Which grammars wait for which.
#include "server/calls/limits/grammar_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

using Effort = GrammarQueue::Effort;

GrammarSource Regex(const std::string& text) { return {GrammarSource::Kind::kRegex, text}; }

TEST(GrammarQueueTest, ASmallOneWaitsForNoLargeOne) {
  std::promise<void> compiling, go, done;
  GrammarQueue queue;
  const auto large = [&](Effort effort) {
    if (effort == Effort::kQuick) return false;
    compiling.set_value();
    go.get_future().wait();
    return true;
  };
  ASSERT_TRUE(queue.Post(1, Regex("large"), large).ok());
  compiling.get_future().wait();
  const auto small = [&](Effort effort) {
    EXPECT_EQ(effort, Effort::kQuick);
    done.set_value();
    return true;
  };
  ASSERT_TRUE(queue.Post(2, Regex("small"), small).ok());
  done.get_future().wait();
  go.set_value();
}

// Prompts of one call want the same one: it is tried once, and counts once.
TEST(GrammarQueueTest, AClientsOthersAreFew) {
  std::promise<void> held, go;
  std::atomic<int> quick{0}, whole{0};
  {
    GrammarQueue queue;
    const auto hold = [&](Effort) {
      held.set_value();
      go.get_future().wait();
      return true;
    };
    ASSERT_TRUE(queue.Post(1, Regex("held"), hold).ok());
    held.get_future().wait();
    const auto count = [&](Effort effort) {
      ++(effort == Effort::kQuick ? quick : whole);
      return effort == Effort::kWhole;
    };
    for (int i = 0; i < 128; ++i) EXPECT_TRUE(queue.Post(1, Regex("same"), count).ok()) << i;
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(queue.Post(1, Regex(absl::StrCat(i)), count).ok()) << i;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(queue.Post(1, Regex("more"), count)));
    EXPECT_TRUE(queue.Post(1, Regex("same"), count).ok());
    EXPECT_TRUE(queue.Post(2, Regex("of another client"), count).ok());
    go.set_value();
  }
  EXPECT_EQ(quick, 5);
  EXPECT_EQ(whole, 129 + 3 + 1);
}

}  // namespace
}  // namespace fox
