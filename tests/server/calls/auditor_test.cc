// Auditor: the comparison against closed forms, and the queue of audits over an engine with a
// scripted executor.
#include "server/calls/auditor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/fixtures/test_core.h"

namespace fox {
namespace {

// Logits of the distribution (share, 1 - share), with any offset.
std::vector<float> Logits(double share, double offset) {
  return {static_cast<float>(std::log(share) + offset),
          static_cast<float>(std::log(1 - share) + offset)};
}

TEST(CompareRowsTest, TwoTokensInClosedForm) {
  for (const double p : {0.5, 0.1, 1e-6}) {
    for (const double q : {0.5, 0.25, 1e-4}) {
      SCOPED_TRACE(testing::Message() << p << ", " << q);
      std::vector<float> pruned = Logits(0.3, 0), unpruned = pruned;  // the first row: no distance
      for (const float x : Logits(p, 7)) pruned.push_back(x);
      for (const float x : Logits(q, -90)) unpruned.push_back(x);
      const v1::Audit audit = CompareRows(pruned, unpruned, 2, 2);
      const double kl = q * std::log(q / p) + (1 - q) * std::log((1 - q) / (1 - p));
      // Logits below 128 are rounded by 2^-18, and the results to float32.
      EXPECT_NEAR(static_cast<double>(audit.max_tv()), std::fabs(p - q), 0x1p-17);
      EXPECT_NEAR(static_cast<double>(audit.sum_tv()), std::fabs(p - q), 0x1p-17);
      EXPECT_NEAR(static_cast<double>(audit.sum_kl()), kl, 0x1p-15);
      EXPECT_EQ(audit.tokens(), 2);
      EXPECT_EQ(audit.skipped(), "");
    }
  }
}

TEST(CompareRowsTest, LogitsThatAreNotFiniteAreNoResult) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(bad);
    EXPECT_EQ(CompareRows({0, 0, bad, 0}, {0, 0, 0, 0}, 2, 2).skipped(), "a logit is not finite");
    EXPECT_EQ(CompareRows({0, 0, 0, 0}, {0, 0, 0, bad}, 2, 2).skipped(), "a logit is not finite");
  }
}

struct Results {
  std::atomic<int> done{0}, skipped{0};
  Audited Next(size_t prompt, size_t answer) {
    Audited sequence;
    sequence.tokens.assign(prompt + answer, 5);
    sequence.prompt_tokens = static_cast<int64_t>(prompt);
    sequence.log_tolerance = -10;
    sequence.done = [this](const v1::Audit& audit) {
      tokens = static_cast<int>(audit.tokens());
      if (!audit.skipped().empty()) ++skipped;
      ++done;
    };
    return sequence;
  }
  std::atomic<int> tokens{0};
};

TEST(AuditorTest, EachAuditHasAResult) {
  TestCore test;
  Results results;
  const int all = static_cast<int>(Auditor::kMaxWaiting) + 20;
  for (int i = 0; i < all; ++i) test.core->auditor().Start(results.Next(100, 7));
  EXPECT_TRUE(Eventually([&] { return results.done == all; }));
  // One runs and kMaxWaiting wait; how many had ended when the last one came is the machine's.
  EXPECT_LE(results.skipped, 20);
  EXPECT_EQ(test.core->metrics().audits_skipped, results.skipped);
  EXPECT_TRUE(test.WaitIdle());
}

TEST(AuditorTest, ALongAnswersLastTokensAreCompared) {
  TestCoreOptions options;
  const int64_t row = CharacterTokenizer::kVocabSize * static_cast<int64_t>(sizeof(float));
  options.limits.audit.max_bytes = 3 * row + 1;
  TestCore test(options);
  Results results;
  test.core->auditor().Start(results.Next(2, 50));
  EXPECT_TRUE(Eventually([&] { return results.done == 1; }));
  EXPECT_EQ(results.tokens, 3);
  EXPECT_EQ(results.skipped, 0);
}

TEST(AuditorTest, AnEngineThatTakesNothingSkips) {
  TestCore test;
  test.core->Drain();
  Results results;
  test.core->auditor().Start(results.Next(3, 3));
  EXPECT_TRUE(Eventually([&] { return results.done == 1; }));
  EXPECT_EQ(results.skipped, 1);
}

TEST(AuditorTest, AuditsThatWaitAtTheEndHaveAResult) {
  Results results;
  constexpr int kAll = 20;
  {
    TestCore test;
    for (int i = 0; i < kAll; ++i) test.core->auditor().Start(results.Next(100, 7));
  }
  EXPECT_EQ(results.done, kAll);
}

TEST(AuditorTest, EachNthOfAShare) {
  for (const auto& [share, chosen] : {std::pair(0.0, 0), {1.0, 12}, {0.5, 6}, {0.25, 3}}) {
    SCOPED_TRACE(share);
    TestCoreOptions options;
    options.limits.audit.share = share;
    TestCore test(options);
    int count = 0;
    for (int i = 0; i < 12; ++i) count += test.core->auditor().Samples() ? 1 : 0;
    EXPECT_EQ(count, chosen);
  }
}

}  // namespace
}  // namespace fox
