// ModelRunner: faults of the backend, kept windows, rounded weights. Golden tests check the
// arithmetic.
#include "engine/run/model_runner.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>

#include "engine/engine_factory.h"
#include "engine/eval/teacher_forcing.h"
#include "kernels/cpu/cpu_ops.h"
#include "models/checkpoint/checkpoint.h"
#include "tests/engine/random_streams.h"
#include "tests/engine/sim/page_audit.h"

namespace fox {
namespace {

StepPlan OneToken(int64_t position) {
  StepPlan plan;
  PlannedSequence& sequence = plan.sequences.emplace_back();
  sequence.slot = 0;
  sequence.position = position;
  sequence.log_tolerance = -10;
  sequence.token_ids = {1};
  sequence.logit_rows = {0};
  return plan;
}

TEST(ModelRunnerTest, APoolFaultIsUnavailableFromThenOn) {
  auto runner = LoadRunner(GoldenConfig("tiny_fla"));
  ASSERT_TRUE(runner.ok()) << runner.status();
  ASSERT_TRUE((*runner)->Submit(OneToken(0)).ok());
  EXPECT_TRUE((*runner)->Collect().ok());
  *(*runner)->cache().pool_fault = PoolFault::kOverdrawn;
  for (int64_t position : {1, 2}) {
    SCOPED_TRACE(position);
    ASSERT_TRUE((*runner)->Submit(OneToken(position)).ok());
    EXPECT_EQ((*runner)->Collect().status(),
              absl::UnavailableError("page pool: a step took more pages than were free"));
  }
}

// A step with a single row, and one whose row to score is a single one among others.
TEST(ModelRunnerTest, ASingleRowIsScoredFromItsLogits) {
  auto runner = LoadRunner(GoldenConfig("tiny_fla"));
  ASSERT_TRUE(runner.ok()) << runner.status();
  const int32_t vocab = (*runner)->limits().vocab_size;
  Sampler sampler(vocab);
  StepPlan plan = OneToken(0);
  for (const int32_t tokens : {1, 5}) {
    SCOPED_TRACE(tokens);
    PlannedSequence& sequence = plan.sequences[0];
    sequence.token_ids.assign(static_cast<size_t>(tokens), 1);
    sequence.logit_rows = {tokens - 1};
    sequence.scores = {{tokens - 1, {/*target=*/2, /*logprobs=*/3}}};
    const absl::StatusOr<StepResult> result = (*runner)->Run(plan);
    ASSERT_TRUE(result.ok()) << result.status();
    SamplingParams sampling;
    sampling.prompt_logprobs = 3;
    const auto want = sampler.ScorePrompt(result->logits[0], sampling, 2);
    const auto got = TokenOf(result->scores[0][0], 3, vocab);
    ASSERT_TRUE(want.ok() && got.ok());
    EXPECT_EQ(got->id, 2);
    EXPECT_EQ(got->rank, want->rank);
    EXPECT_FLOAT_EQ(got->logprob, want->logprob);
    ASSERT_EQ(got->top.size(), want->top.size());
    for (size_t i = 0; i < want->top.size(); ++i) {
      EXPECT_EQ(got->top[i].id, want->top[i].id) << i;
    }
    sequence.position = tokens;
  }
}

// Three pages of it, and a bound so loose that heads forget.
TEST(ModelRunnerTest, WindowsAreThoseOfTheCacheWherePlansAskForThem) {
  auto runner = LoadRunner(GoldenConfig("tiny_fla"));
  ASSERT_TRUE(runner.ok()) << runner.status();
  StepPlan plan;
  PlannedSequence& sequence = plan.sequences.emplace_back();
  sequence.slot = 1;
  sequence.log_tolerance = -0.01;
  sequence.token_ids.assign(5 * kPageTokens, 1);
  absl::StatusOr<StepResult> result = (*runner)->Run(plan);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->first_pages, nullptr);

  sequence.position = 5 * kPageTokens;
  plan.read_windows = true;
  result = (*runner)->Run(plan);
  ASSERT_TRUE(result.ok());
  ASSERT_NE(result->first_pages, nullptr);
  const int64_t lists = (*runner)->limits().lists_per_slot;
  const std::vector<int32_t> read(result->first_pages + lists, result->first_pages + 2 * lists);
  EXPECT_EQ(read, FirstLive((*runner)->cache(), (*runner)->ops(), 1));
  EXPECT_EQ(std::accumulate(read.begin(), read.end(), int64_t{0}), result->stats[0].pages_evicted);
  EXPECT_GT(result->stats[0].pages_evicted, 0);
  EXPECT_EQ(result->first_pages[0], 0);  // of the empty slot before it
}

// The audit recomputes from float64 what rows lose of the attention that is computed.
TEST(ModelRunnerTest, CertificatesHoldForRoundedWeights) {
  const std::string folder = FOX_SOURCE_DIR;
  int64_t lossy_rows = 0;
  for (const char* const model : {"/models/demo", "/tests/golden/dev_llama_d64"}) {
    const auto checkpoint = Checkpoint::Open(folder + model, {});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const Quantization quantization : {Quantization::kQ8, Quantization::kQ4}) {
      SCOPED_TRACE(::testing::Message() << model << " in " << NameOf(quantization));
      const auto audit = std::make_shared<MassAudit>(MassAudit::OnBreach::kRecord);
      auto ops = std::make_unique<CpuOps>(CpuOptions{.audit = audit});
      FoxWeights weights =
          LoadWeights(*checkpoint, *ops, DType::kF32, quantization, DType::kF32, {});
      RunnerOptions options;
      options.acp = AcpMode::kCertified;
      options.max_model_len = 1024;
      options.num_pages = 8192;
      options.max_num_batched_tokens = 128;  // products of many rows, and of single ones
      ModelRunner runner(std::move(ops), std::move(weights), options);
      std::vector<int32_t> ids(700);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(3 + i * 37 % 500);
      TeacherForcingOptions forcing;
      forcing.chunk = 128;
      forcing.decode_from = 640;
      ASSERT_TRUE(RunTeacherForced(runner, ids, forcing, nullptr).ok());
      EXPECT_LE(audit->max_excess(), 0);
      lossy_rows += audit->rows_checked();
    }
  }
  EXPECT_GT(lossy_rows, 0);
}

}  // namespace
}  // namespace fox
