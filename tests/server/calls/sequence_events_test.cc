// SequenceEvents: grouping, text held back, stop strings, and what Finish says.
#include "server/calls/sequence_events.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "tests/fixtures/test_core.h"

namespace fox {
namespace {

constexpr Seconds kArrival = 10;

RequestOutput Tokens(const std::string& text) {
  RequestOutput output;
  for (char c : text) output.tokens.push_back({static_cast<unsigned char>(c), -0.5f, 1, {}});
  return output;
}

class SequenceEventsTest : public ::testing::Test {
 protected:
  SequenceEventsTest() {
    spec_.sequences.resize(1);
    spec_.sequences[0].id = 7;
    spec_.sequences[0].prompt = {1, 2, 3};
  }
  SequenceEvents& events() {
    if (!events_) {
      events_.emplace(spec_, 0, kArrival, *test_.core);
    }
    return *events_;
  }
  // The text of each TokenDelta.
  std::vector<std::string> Deltas() {
    std::vector<std::string> texts;
    for (const CallEvent& event : added_) {
      if (event.delta.has_delta()) texts.push_back(event.delta.delta().text());
    }
    return texts;
  }
  void Consume(const RequestOutput& output, Seconds when) {
    events().CountTokens(output.tokens.size(), when);
    events().ConsumeOutput(output, &added_);
  }
  v1::Finish End(const Finish& finish, Seconds when = 15) {
    events().EndSequence(finish, when, &added_);
    return added_.back().delta.finish();
  }

  TestCore test_;
  std::vector<CallEvent> added_;
  GenerationSpec spec_;
  std::optional<SequenceEvents> events_;
};

using Texts = std::vector<std::string>;

TEST_F(SequenceEventsTest, TheFirstTokenComesAloneAndOthersByTheInterval) {
  spec_.stream_interval = 3;
  for (const char* token : {"a", "b", "c", "d", "e", "f"}) Consume(Tokens(token), 12);
  EXPECT_EQ(Deltas(), (Texts{"a", "bcd"}));
  Finish finish;
  finish.reason = FinishReason::kLength;
  finish.stats.cached_tokens = 2;
  const v1::Finish end = End(finish);
  EXPECT_EQ(Deltas(), (Texts{"a", "bcd", "ef"}));
  EXPECT_EQ(end.reason(), v1::LENGTH);
  EXPECT_EQ(end.usage().prompt_tokens(), 3u);
  EXPECT_EQ(end.usage().completion_tokens(), 6u);
  EXPECT_EQ(end.usage().cached_tokens(), 2u);
  EXPECT_FALSE(end.has_perf());
  EXPECT_FALSE(end.has_acp());
}

TEST_F(SequenceEventsTest, TextBeforeAStopStringOnly) {
  spec_.stop = {"never", "END"};
  Consume(Tokens("x"), 12);
  Consume(Tokens("EN"), 12);  // may become the stop string
  EXPECT_EQ(Deltas(), (Texts{"x"}));
  EXPECT_FALSE(events().stopped());
  Consume(Tokens("Dyz"), 12);  // sampled before the engine knew
  EXPECT_TRUE(events().stopped());
  EXPECT_EQ(Deltas(), (Texts{"x"}));
  Finish aborted;
  aborted.reason = FinishReason::kAbort;  // the engine's reason for a cancelled sequence
  const v1::Finish end = End(aborted);
  EXPECT_EQ(end.reason(), v1::STOP);
  EXPECT_EQ(end.stop_str(), "END");
  EXPECT_EQ(end.usage().completion_tokens(), 4u);
  EXPECT_EQ(Deltas(), (Texts{"x"}));
}

TEST_F(SequenceEventsTest, WhatWasHeldBackComesAtTheEnd) {
  spec_.stop = {"END"};
  Consume(Tokens("EN"), 12);
  EXPECT_EQ(Deltas(), Texts{});
  End(Finish());
  EXPECT_EQ(Deltas(), (Texts{"EN"}));
}

TEST_F(SequenceEventsTest, NothingStopsBeforeMinTokens) {
  spec_.stop = {"a"};
  spec_.sequences[0].stop.min_tokens = 3;
  Consume(Tokens("aa"), 12);
  EXPECT_FALSE(events().stopped());
  Consume(Tokens("a"), 12);
  EXPECT_TRUE(events().stopped());
  EXPECT_EQ(Deltas(), (Texts{"a", "a"}));
}

TEST_F(SequenceEventsTest, IdsAndLogprobsAreNotHeldBack) {
  spec_.stop = {"END"};
  spec_.token_ids = spec_.logprobs = true;
  RequestOutput output = Tokens("E");
  output.tokens[0].top = {{'F', -1.5f, 2}};
  output.prompt_logprobs = Tokens("pq").tokens;
  Consume(output, 12);
  ASSERT_EQ(added_.size(), 2u);
  EXPECT_EQ(added_[0].delta.prompt().prompt_logprobs_size(), 2);
  EXPECT_EQ(added_[1].tokens, 1);
  const v1::TokenDelta& delta = added_[1].delta.delta();
  EXPECT_EQ(delta.text(), "");
  ASSERT_EQ(delta.token_ids_size(), 1);
  EXPECT_EQ(delta.token_ids(0), static_cast<uint32_t>('E'));
  ASSERT_EQ(delta.logprobs(0).top_size(), 1);
  EXPECT_EQ(delta.logprobs(0).top(0).rank(), 2u);
}

TEST_F(SequenceEventsTest, FinishTellsTimesAndTheCertificate) {
  spec_.perf = spec_.acp_stats = true;
  Consume(Tokens(""), 11);
  EXPECT_EQ(events().first_token(), kNever);
  Consume(Tokens("a"), 12);
  Consume(Tokens("b"), 13);
  Consume(Tokens("cd"), 14);  // half a second each
  EXPECT_EQ(events().first_token(), 12);
  const CallMetrics& metrics = test_.core->metrics();
  EXPECT_DOUBLE_EQ(metrics.time_to_first_token.Collect().histogram.sample_sum, 2);
  EXPECT_EQ(metrics.inter_token.Collect().histogram.sample_count, 3u);
  EXPECT_DOUBLE_EQ(metrics.inter_token.Collect().histogram.sample_sum, 2);
  Finish finish;
  finish.stats.first_scheduled = 11;
  finish.stats.preemptions = 2;
  finish.stats.acp.blocks_total = 9;
  finish.stats.acp.blocks_pruned = 4;
  finish.stats.acp.log_tolerance = -10;
  const v1::Finish end = End(finish, 15);
  EXPECT_EQ(end.perf().queue_s(), 1);
  EXPECT_EQ(end.perf().prefill_s(), 1);
  EXPECT_EQ(end.perf().ttft_s(), 2);
  EXPECT_EQ(end.perf().decode_s(), 3);
  EXPECT_EQ(end.perf().e2e_s(), 5);
  EXPECT_EQ(end.perf().preemptions(), 2u);
  EXPECT_EQ(end.acp().blocks_total(), 9u);
  EXPECT_EQ(end.acp().blocks_pruned(), 4u);
  EXPECT_EQ(end.acp().log_tolerance(), -10);
  EXPECT_TRUE(std::isinf(end.acp().max_log_evicted_mass()));  // nothing was evicted
  EXPECT_FLOAT_EQ(end.acp().bound_log_prob(), 0.045399930F);  // 1000 exp(-10)
}

TEST_F(SequenceEventsTest, WhatRowsLostIsToldWhereTheyDid) {
  spec_.acp_stats = true;
  Finish finish;
  finish.stats.acp.prompt_lost.Add(-12.25, kNoMass);
  finish.stats.acp.prompt_lost.Add(-12.25, kNoMass);
  v1::Finish end = End(finish, 15);
  EXPECT_EQ(end.acp().prompt_lost().max_log(), -12.25F);
  EXPECT_GE(static_cast<double>(end.acp().prompt_lost().log_sum()), std::log(2) - 12.25);
  EXPECT_NEAR(end.acp().prompt_lost().log_sum(), std::log(2) - 12.25, 1e-5);
  EXPECT_FALSE(end.acp().prompt_lost().has_max_log_shift());
  EXPECT_FALSE(end.acp().has_answer_lost());
  events_.reset();
  finish.stats.acp.answer_lost.Add(-1472.5, -3.5);
  end = End(finish, 15);
  EXPECT_EQ(end.acp().answer_lost().max_log(), -1472.5F);
  EXPECT_NEAR(end.acp().answer_lost().log_sum(), kLeastLogMass, 1e-4);
  EXPECT_EQ(end.acp().answer_lost().max_log_shift(), -3.5F);
  EXPECT_NEAR(end.acp().answer_lost().log_sum_shift(), -3.5, 1e-6);
}

// A float32 that is not below the bound, whichever way the nearest one lies.
TEST_F(SequenceEventsTest, TheCertificateIsRoundedUp) {
  spec_.acp_stats = true;
  Finish finish;
  for (const double bound : {-10.0, -10.0061998, -10.0062003, -1e-9, -1472.9, -1e300}) {
    SCOPED_TRACE(bound);
    events_.reset();
    finish.stats.acp.max_log_evicted_mass = bound;
    const float told = End(finish, 15).acp().max_log_evicted_mass();
    EXPECT_GE(static_cast<double>(told), bound);
    EXPECT_LT(std::nextafter(told, -HUGE_VALF), bound);
  }
}

}  // namespace
}  // namespace fox
