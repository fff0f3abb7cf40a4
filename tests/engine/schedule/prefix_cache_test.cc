// PrefixCache: snapshots that are due, found, waited for and dropped. The tests do the scheduler's
// part.
#include "engine/schedule/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

namespace fox {
namespace {

constexpr int64_t kLists = 2;

class PrefixCacheTest : public testing::Test {
 protected:
  PrefixCacheTest() {
    limits_.num_pages = 400;
    limits_.lists_per_slot = kLists;
    limits_.max_num_seqs = 8;
    limits_.snapshot_slots = 4;
    options_.prefix_cache_share = 0.5;
    options_.prefix_cache_interval = 256;
    Reset();
  }

  void Reset() {
    ledger_ = std::make_unique<PageLedger>(limits_);
    cache_ = std::make_unique<PrefixCache>(limits_, options_, *ledger_, times_, store_);
    cache_->BeginPlan(0);
  }

  // Sets the rule as Scheduler::Add does, for an executor whose bits depend on chunks.
  Sequence* MakeInChunks(int32_t first, int64_t prompt) {
    Sequence* sequence = Make(first, prompt);
    sequence->chunks = {128, /*fixed=*/true};
    return sequence;
  }

  Sequence* Make(int32_t first, int64_t prompt, const std::string& salt = "", uint64_t tenant = 0) {
    Request request;
    request.id = sequences_.size();
    request.tenant = tenant;
    request.cache_salt = salt;
    request.prompt.resize(static_cast<size_t>(prompt));
    std::iota(request.prompt.begin(), request.prompt.end(), first);
    request.stop.max_tokens = 1000;
    const auto arrival = static_cast<int64_t>(sequences_.size());
    sequences_.push_back(
        std::make_unique<Sequence>(std::move(request), options_, 100000, arrival, 0.0));
    sequences_.back()->group->members = {sequences_.back().get()};
    return sequences_.back().get();
  }

  void Start(Sequence* sequence) {
    ASSERT_FALSE(cache_->Match(sequence));
    sequence->slot = static_cast<int32_t>(next_slot_++ % 8);
    sequence->computed = cache_->Lock(*sequence);
    cache_->Start(sequence);
  }
  // Runs `tokens` more of a sequence in a plan of its own, and opens the next one.
  void Step(Sequence* sequence, int64_t tokens) {
    tokens = cache_->CutChunk(*sequence, tokens);
    PlannedSequence& planned = plan_.sequences.emplace_back();
    planned.slot = sequence->slot;
    planned.position = sequence->computed;
    planned.token_ids.resize(static_cast<size_t>(tokens));
    sequence->computed += tokens;
    Submit();
    cache_->BeginPlan(++now_);
    cache_->Follow(sequence);
  }
  void Submit() {
    cache_->FillPlan(&plan_);
    last_ = plan_;
    ledger_->Submit(plan_);
    StepResult result;
    result.free_pages = ledger_->free();
    held_.clear();
    for (int32_t slot = 0; slot < 8 + limits_.snapshot_slots; ++slot) {
      held_.push_back(static_cast<int32_t>(ledger_->held(slot)));
    }
    // An ended sequence leaves its pages to the snapshot of its end.
    for (const SharedSlot& snapshot : plan_.snapshots) {
      const auto& released = plan_.release_slots;
      if (std::find(released.begin(), released.end(), snapshot.from) == released.end()) continue;
      held_[static_cast<size_t>(snapshot.to)] =
          static_cast<int32_t>(kLists * snapshot.tokens / kPageTokens);
    }
    result.sole_pages = held_.data();
    result.stats.resize(plan_.sequences.size());
    ledger_->Collect(result);
    if (!last_.empty()) cache_->Collected(last_, result);
    plan_ = {};
  }
  void End(Sequence* sequence) {
    cache_->Leave(sequence, true);
    plan_.release_slots.push_back(sequence->slot);
    sequence->slot = -1;
    sequence->computed = 0;
  }

  ExecutorLimits limits_;
  EngineOptions options_;
  ServiceTimes times_;
  SnapshotStore* store_ = nullptr;
  std::unique_ptr<PageLedger> ledger_;
  std::unique_ptr<PrefixCache> cache_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<int32_t> held_;
  StepPlan plan_, last_;
  int64_t next_slot_ = 0;
  Seconds now_ = 0;
};

std::vector<int64_t> Taken(const StepPlan& plan) {
  std::vector<int64_t> tokens;
  for (const SharedSlot& snapshot : plan.snapshots) tokens.push_back(snapshot.tokens);
  return tokens;
}

TEST_F(PrefixCacheTest, SnapshotsAtIntervalsAndTheEndsOfPromptAndAnswer) {
  Sequence* a = Make(0, 1000);
  Start(a);
  Step(a, 200);
  EXPECT_TRUE(Taken(last_).empty());
  Step(a, 184);  // 384
  Submit();
  EXPECT_EQ(Taken(last_), std::vector<int64_t>{384});
  Step(a, 192);  // 576
  Step(a, 424);  // the whole prompt
  Submit();
  EXPECT_EQ(Taken(last_), std::vector<int64_t>{960});
  for (int i = 0; i < 100; ++i) a->Append({1, 0, 0, {}});
  Step(a, 99);
  EXPECT_TRUE(Taken(last_).empty());
  End(a);
  Submit();
  EXPECT_EQ(Taken(last_), std::vector<int64_t>{1088});
  EXPECT_EQ(cache_->size(), 3);
}

TEST_F(PrefixCacheTest, WherePromptsPartOneIsTaken) {
  Sequence* a = Make(0, 640);
  Start(a);
  Step(a, 640);
  Submit();
  Sequence* b = Make(0, 640);
  b->tokens[200] = -1;
  Start(b);
  EXPECT_EQ(b->computed, 0);
  Step(b, 640);
  EXPECT_EQ(b->computed, 192);  // cut where they part
  Submit();
  EXPECT_EQ(Taken(last_), std::vector<int64_t>{192});
  Sequence* c = Make(0, 640);
  c->tokens[201] = -1;
  Start(c);
  EXPECT_EQ(c->computed, 192);
}

// The first chunk is made before the sequence has a slot.
TEST_F(PrefixCacheTest, WhereAChunkEndsIsKnownBeforeTheSequenceStarts) {
  Sequence* a = Make(0, 640);
  Start(a);
  Step(a, 640);
  Submit();
  Sequence* b = Make(0, 640);
  b->tokens[200] = -1;
  EXPECT_FALSE(cache_->Match(b));
  EXPECT_EQ(cache_->CutChunk(*b, 640), 192);
  // A sibling could not start at the end of the prompt.
  Sequence* c = Make(5000, 640);
  c->group->members.push_back(b);
  EXPECT_FALSE(cache_->Match(c));
  EXPECT_EQ(cache_->CutChunk(*c, 640), 576);
}

TEST_F(PrefixCacheTest, AMoreUrgentSequenceDoesNotWait) {
  Sequence* a = Make(0, 640);
  a->priority = 1;
  Start(a);
  Sequence* b = Make(0, 641);
  EXPECT_FALSE(cache_->Match(b));
  Sequence* as_urgent = Make(0, 641);
  as_urgent->priority = 1;
  EXPECT_TRUE(cache_->Match(as_urgent));
}

TEST_F(PrefixCacheTest, TheLeastWorthIsDropped) {
  // Four slots: one snapshot each.
  std::vector<Sequence*> all;
  for (int32_t i = 0; i < 4; ++i) {
    all.push_back(Make(10000 * i, 128));
    Start(all.back());
    Step(all.back(), 128);
    End(all.back());
    Submit();
    cache_->BeginPlan(++now_);
  }
  EXPECT_EQ(cache_->size(), 4);
  // The first snapshot is the oldest, but has just been used.
  Sequence* again = Make(0, 129);
  Start(again);
  EXPECT_EQ(again->computed, 128);
  Submit();
  cache_->BeginPlan(++now_);
  EXPECT_GT(cache_->Evict(1), 0);
  Submit();
  const auto found = [&](int32_t first) {
    Sequence* probe = Make(first, 129);
    cache_->Match(probe);
    return probe->prefix().found;
  };
  EXPECT_EQ(found(0), 128);
  EXPECT_EQ(found(10000), 0);
  EXPECT_EQ(found(20000), 128);
}

// One tenant uses a prefix now and then, beside another tenant's flood of new prompts.
TEST_F(PrefixCacheTest, AFloodOfATenantTakesItsOwnPlaces) {
  for (const bool same : {true, false}) {
    SCOPED_TRACE(same);
    limits_.snapshot_slots = 32;
    limits_.num_pages = 4000;
    Reset();
    const auto ask = [&](int32_t first, uint64_t tenant) {
      Sequence* const sequence = Make(first, 129, std::to_string(tenant), tenant);
      Start(sequence);
      const int64_t found = sequence->computed;
      Step(sequence, 129 - found);
      End(sequence);
      Submit();
      cache_->BeginPlan(++now_);
      return found;
    };
    EXPECT_EQ(ask(0, 1), 0);
    int64_t found = 0;
    for (int32_t round = 0; round < 4; ++round) {
      for (int32_t i = 0; i < 100; ++i) ask(1000 * (1 + 100 * round + i), same ? 1 : 2);
      found += ask(0, 1);
    }
    EXPECT_EQ(found, same ? 0 : 4 * 128);
  }
}

TEST_F(PrefixCacheTest, ASnapshotTakesTheRoomOfALongerOne) {
  limits_.snapshot_slots = 1;
  Reset();
  Sequence* a = Make(0, 192);
  Start(a);
  Step(a, 192);
  End(a);
  Submit();
  cache_->BeginPlan(++now_);
  Sequence* b = Make(0, 150);
  Start(b);
  b->computed = 150;
  End(b);
  Submit();
  EXPECT_EQ(Taken(last_), std::vector<int64_t>{128});
  EXPECT_EQ(last_.drop_snapshots.size(), 1u);
  cache_->BeginPlan(++now_);
  Sequence* c = Make(0, 192);
  EXPECT_FALSE(cache_->Match(c));
  EXPECT_EQ(c->prefix().found, 128);
}

// The prompt's last page end, 704, is no multiple of 128, so its chunk is cut at 640. For a shorter
// prompt a snapshot is not worth a step.
TEST_F(PrefixCacheTest, InChunksALongPromptIsCutForItsSnapshot) {
  options_.prefix_cache_interval = 4096;
  Reset();
  Sequence* sequence = MakeInChunks(0, 730);
  Start(sequence);
  EXPECT_EQ(cache_->CutChunk(*sequence, 730), 640);
  Step(sequence, 730);
  EXPECT_EQ(sequence->computed, 640);
  Step(sequence, 90);
  ASSERT_EQ(last_.snapshots.size(), 1u);
  EXPECT_EQ(last_.snapshots[0].tokens, 640);
  Sequence* even = MakeInChunks(1000, 700);  // 640 is its last page end
  Start(even);
  EXPECT_EQ(cache_->CutChunk(*even, 700), 700);
  Sequence* little = MakeInChunks(2000, 490);
  Start(little);
  EXPECT_EQ(cache_->CutChunk(*little, 490), 490);
}

// Samples of one prompt start with two tokens of the prompt left.
TEST_F(PrefixCacheTest, InChunksSiblingsShareAMultiple) {
  for (const int64_t prompt : {256, 257, 258, 340}) {
    Reset();
    Sequence* first = MakeInChunks(0, prompt);
    Sequence* second = MakeInChunks(0, prompt);
    first->group->members.push_back(second);
    second->group = first->group;
    Start(first);
    const int64_t shared = (prompt - 2) / 128 * 128;
    EXPECT_EQ(cache_->CutChunk(*first, prompt), prompt == 258 ? 258 : shared) << prompt;
    EXPECT_TRUE(cache_->Match(second)) << prompt;
    Step(first, prompt);
    if (first->computed < prompt) Step(first, prompt - first->computed);
    cache_->BeginPlan(++now_);
    EXPECT_FALSE(cache_->Match(second)) << prompt;
    EXPECT_EQ(second->prefix().found, shared) << prompt;
  }
}

}  // namespace
}  // namespace fox
