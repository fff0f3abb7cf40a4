// The scheduler's rules one by one, on sequences made by hand.
#include "engine/schedule/scheduler.h"

#include "gmock/gmock.h"
#include "tests/engine/schedule/scheduler_fixture.h"

namespace fox {
namespace {

TEST_F(SchedulerTest, ChunksEndAtPagesAndShareAStep) {
  Start();
  Add(300);
  Add(100);
  Schedule schedule = Step();  // 256 is a page end
  EXPECT_EQ(Chunks(schedule), (Sizes{256}));
  EXPECT_TRUE(schedule.plan.sequences[0].logit_rows.empty());
  schedule = Step();
  EXPECT_EQ(Chunks(schedule), (Sizes{100, 44}));  // the whole prompt first
  EXPECT_EQ(schedule.plan.sequences[1].position, 256);
  EXPECT_EQ(schedule.plan.sequences[1].logit_rows, std::vector<int32_t>{43});
  limits_.max_num_batched_tokens = 100;
  sequences_.clear();
  Start();
  Add(300);
  EXPECT_EQ(Chunks(Step()), Sizes{64});  // 100 is cut down to a page end
}

TEST_F(SchedulerTest, PriorityThenArrival) {
  limits_.max_num_seqs = 2;
  Start();
  Add(5, 3);
  Add(5, 1);
  Add(5, 1);
  EXPECT_EQ(Ids(Step()), (IdList{1, 2}));
  Step();
  scheduler_->Remove(sequences_[1].get());
  const Schedule schedule = Step();
  EXPECT_EQ(schedule.plan.release_slots, std::vector<int32_t>{0});
  EXPECT_EQ(Ids(schedule), (IdList{2, 0}));
  EXPECT_EQ(schedule.plan.sequences[1].slot, 0);  // used again in the same plan
}

TEST_F(SchedulerTest, AdmissionKeepsHeadroom) {
  limits_.num_pages = 10;
  Start();
  Add(64);  // 2 pages, and 2 for half of an answer of 64
  Add(64);  // likewise, and 2 of headroom for the first
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));
  sequences_.clear();
  limits_.num_pages = 9;
  Start();
  Add(64);
  Add(64);
  EXPECT_EQ(Ids(Step()), IdList{0});
}

TEST_F(SchedulerTest, ARequestWithoutRoomIsOvertakenForAWhile) {
  limits_.num_pages = 30;
  limits_.max_num_seqs = 8;
  Start();
  Add(64);
  Sequence* first = Add(400);
  EXPECT_EQ(Ids(Step()), (IdList{0, 1}));
  Sequence* second = Add(600);
  Add(5);
  EXPECT_EQ(Ids(Step(1.0)), (IdList{0, 3, 1}));  // the short one finds room
  EXPECT_EQ(second->blocked_since, 1.0);
  Add(5);
  const Schedule held = Step(1.0 + kStarvation);
  EXPECT_THAT(Ids(held), testing::Not(testing::Contains(4)));
  scheduler_->Remove(first);
  EXPECT_THAT(Ids(Step(7.0)), testing::Contains(second->request.id));
}

// Each short prompt also needs a row for each of its tokens, and ends at its first token.
TEST_F(SchedulerTest, ScoredPromptsDoNotStarveOneThatHasStarted) {
  limits_.num_pages = 1000;
  limits_.max_logit_rows = 16;
  Start();
  Sequence* patient = Add(400, 0, 0, 0);
  Step();
  int64_t steps = 0;
  for (; patient->produced() == 0 && steps < 1000; ++steps) {
    const std::vector<Sequence*> others = {Add(8, 0, 0, 0), Add(8, 0, 0, 0)};
    Step();
    for (Sequence* other : others) scheduler_->Remove(other);
  }
  EXPECT_LE(steps, 400 / 8);  // it has half of the rows
}

// A long urgent prompt has half of each step; short prompts that end at their first token have the
// other half.
TEST_F(SchedulerTest, UrgentPromptsStarveNone) {
  limits_.num_pages = 1000;
  limits_.max_num_seqs = 3;
  limits_.max_num_batched_tokens = 128;
  for (const bool runs : {false, true}) {
    SCOPED_TRACE(runs);
    sequences_.clear();
    client_ = 0;
    Start();
    Sequence* patient = Add(2000, 1);
    if (runs) Step();
    client_ = 1;
    const Sequence* urgent = Add(9000);
    std::vector<Sequence*> others;
    Seconds now = 0;
    for (; patient->produced() == 0 && now < 100; now += 0.1) {
      while (others.size() < 3) others.push_back(Add(64));
      EXPECT_EQ(Step(now).plan.num_tokens(), 128);
      for (Sequence*& other : others) {
        if (other->produced() > 0) scheduler_->Remove(std::exchange(other, Add(64)));
      }
    }
    EXPECT_GT(now, kStarvation);
    EXPECT_LE(now, kStarvation + 0.1 * static_cast<double>(PagesFor(2000) + 2));
    EXPECT_GT(urgent->computed, 64 * 40);  // till then it had half
  }
}

// An executor whose bits depend on chunks (ChunkRule::fixed): ends of chunks, single
// tokens; prompts beside decodes (prefill_tokens_per_decode).
class SchedulerChunksTest : public SchedulerTest {
 protected:
  SchedulerChunksTest() {
    limits_.chunks = {128, /*fixed=*/true};
    limits_.num_pages = 1000;
    limits_.max_num_batched_tokens = 1024;
    limits_.max_logit_rows = 256;
  }

  // The chunks of a prompt that runs alone, until its first token.
  Sizes ChunksOf(int64_t prompt, int32_t prompt_logprobs = -1) {
    sequences_.clear();
    Start();
    Sequence* sequence = Add(prompt, 0, 0, prompt_logprobs);
    Sizes chunks;
    while (sequence->produced() == 0 && chunks.size() < 100) {
      const Schedule schedule = Step();
      for (const size_t chunk : Chunks(schedule)) chunks.push_back(chunk);
    }
    return chunks;
  }
};

TEST_F(SchedulerChunksTest, ChunksEndAtMultiplesOrWithThePrompt) {
  limits_.max_num_batched_tokens = 300;
  EXPECT_EQ(ChunksOf(1000), (Sizes{256, 256, 256, 232}));
  EXPECT_EQ(ChunksOf(300), Sizes{300});
  EXPECT_EQ(ChunksOf(512), (Sizes{256, 256}));
  EXPECT_EQ(ChunksOf(2), Sizes{2});
  EXPECT_EQ(ChunksOf(1), Sizes{1});
}

// As many sequences run as leave room for the smallest chunk of one of them.
TEST_F(SchedulerChunksTest, SeatsLeaveRoomForAChunk) {
  limits_.max_num_batched_tokens = 131;
  Start();
  EXPECT_EQ(scheduler_->max_running(), 3);
  for (int i = 0; i < 2; ++i) Add(2);
  Step();
  Add(385);
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 1, 128}));
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 1, 128}));
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 1, 129}));
}

TEST_F(SchedulerChunksTest, AShortStepStillHoldsAChunk) {
  options_.max_step_seconds = 1e-3;
  Start();
  for (int i = 0; i < 20; ++i) times_.RecordStep(1000, 0, 1.0);
  Add(500);
  Add(500, 1);
  for (int i = 0; i < 8; ++i) EXPECT_THAT(Chunks(Step()), testing::Contains(testing::Gt(1u)));
  EXPECT_GT(sequences_[0]->produced(), 0);
  EXPECT_GT(sequences_[1]->produced(), 0);
}

TEST_F(SchedulerChunksTest, PromptsBesideDecodesAreCut) {
  limits_.prefill_tokens_per_decode = 27;  // for each of 11 decodes, as there are fewer
  Start();
  Add(4000);
  EXPECT_EQ(Chunks(Step()), Sizes{1024});
  Sequence* other = Add(20);
  EXPECT_EQ(Chunks(Step()), (Sizes{20, 896}));
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 256}));
  Add(280);
  EXPECT_EQ(Chunks(Step()), (Sizes{1, 256}));
  scheduler_->Remove(other);
  EXPECT_EQ(Chunks(Step()), (Sizes{280, 640}));  // none decodes
}

TEST_F(SchedulerChunksTest, PromptsGetTokensForEachDecodeBesideThem) {
  limits_.max_num_seqs = 64;
  limits_.num_pages = 4000;
  limits_.max_num_batched_tokens = 2048;
  const auto chunk = [&](int64_t per_decode, int decodes) {
    limits_.prefill_tokens_per_decode = per_decode;
    sequences_.clear();
    Start();
    for (int i = 0; i < decodes; ++i) Add(2);
    if (decodes > 0) Step();
    Add(8000);
    const Sizes chunks = Chunks(Step());
    EXPECT_EQ(chunks.size(), static_cast<size_t>(decodes) + 1);
    return chunks.back();
  };
  EXPECT_EQ(chunk(64, 0), 2048u);
  EXPECT_EQ(chunk(64, 1), 640u);  // as beside 11
  EXPECT_EQ(chunk(64, 11), 640u);
  EXPECT_EQ(chunk(64, 12), 768u);
  EXPECT_EQ(chunk(64, 16), 1024u);
  EXPECT_EQ(chunk(64, 18), 1152u);
  EXPECT_EQ(chunk(64, 29), 1792u);
  // The 2,048 tokens of the step less those of the decodes, down to a multiple of 128.
  EXPECT_EQ(chunk(64, 40), 1920u);
  EXPECT_EQ(chunk(1 << 20, 1), 1920u);
  EXPECT_EQ(chunk(0, 1), 1920u);  // no limit for each decode
  EXPECT_EQ(chunk(1, 1), 128u);   // the smallest chunk
  EXPECT_EQ(chunk(1, 40), 128u);
}

// However few tokens prompts get beside a decode, one of them goes on in each step, and so does the
// decode.
TEST_F(SchedulerChunksTest, APromptGoesOnInEveryMixedStep) {
  limits_.prefill_tokens_per_decode = 1;
  Start();
  Add(20);
  Step();
  const Sequence* first = Add(1000);
  const Sequence* second = Add(600);
  const int64_t steps = PagesFor(1000) / 2 + PagesFor(600) / 2;
  for (int64_t i = 0; i < steps; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(first->produced() > 0, i >= PagesFor(1000) / 2);
    EXPECT_THAT(Chunks(Step()),
                testing::AllOf(testing::Contains(1u), testing::Contains(testing::Gt(1u)).Times(1)));
  }
  EXPECT_GT(second->produced(), 0);
}

}  // namespace
}  // namespace fox
