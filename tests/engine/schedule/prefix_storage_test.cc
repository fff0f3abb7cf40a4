// The prefix cache and its store, by whole engines over the simulation's executor: what is saved
// and when, how long a request waits for a read, and what it does without one.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "engine/engine.h"
#include "tests/engine/sim/fake_executor.h"
#include "tests/engine/sim/fake_store.h"

namespace fox::sim {
namespace {

constexpr double kNever = 1, kAtOnce = 0;  // delays of the store

class PrefixStorageTest : public ::testing::Test, private StepObserver {
 protected:
  PrefixStorageTest() {
    ExecutorLimits& limits = fake_.limits;
    limits.lists_per_slot = 4;
    limits.max_num_seqs = 4;
    limits.snapshot_slots = 4;
    limits.max_model_len = 1200;
    limits.num_pages = 400;
    limits.max_num_batched_tokens = 2000;
    limits.max_logit_rows = 16;
    limits.vocab_size = 16;
    SetStaging(/*buffers=*/2, /*pages=*/100, &limits);
    options_.prefix_cache_share = 0.5;
    Restart(kAtOnce);
  }

  // A new engine with the store of the last one.
  void Restart(double delays, double faults = 0) {
    engine_.reset();
    executor_ = std::make_unique<FakeExecutor>(fake_);
    if (store_ == nullptr) store_ = std::make_unique<FakeStore>(*executor_, 1, faults, delays);
    store_->Serve(*executor_, faults, delays);
    engine_ = std::make_unique<Engine>(options_, *executor_, std::vector<StepObserver*>{this},
                                       store_.get());
    loads_ = saves_ = 0;
  }
  void Submit(int64_t prompt, int32_t first = 0, const std::string& salt = "") {
    Request request;
    request.cache_salt = salt;
    request.id = ++id_;
    request.prompt.resize(static_cast<size_t>(prompt));
    for (size_t i = 0; i < request.prompt.size(); ++i) {
      request.prompt[i] = static_cast<int32_t>((i * i + static_cast<size_t>(first)) % 16);
    }
    request.sampling.temperature = 0;
    request.stop.max_tokens = 2;
    EXPECT_TRUE(engine_->Submit(std::move(request), now_).ok());
  }
  // Steps while there is something to do now. Returns the cached tokens of a request that ended;
  // -1: none did.
  int64_t Run() {
    int64_t cached = -1;
    for (int i = 0; i < 100; ++i) {
      store_->Advance();
      if (!engine_->HasWork() && engine_->NextDeadline() > now_) break;
      for (const RequestOutput& output : engine_->Step(now_)) {
        if (!output.finish) continue;
        EXPECT_TRUE(output.finish->status.ok()) << output.finish->status;
        cached = output.finish->stats.cached_tokens;
      }
      engine_->Check();
      EXPECT_EQ(executor_->violation(), "");
    }
    return cached;
  }
  int64_t Ask(int64_t prompt, int32_t first = 0, const std::string& salt = "") {
    Submit(prompt, first, salt);
    return Run();
  }
  // Everything in memory is stored.
  void Save() {
    engine_->SavePrefixCache();
    Run();
    EXPECT_EQ(engine_->stats().snapshots_unsaved, 0);
  }

  FakeOptions fake_;
  EngineOptions options_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<FakeStore> store_;
  std::unique_ptr<Engine> engine_;
  Seconds now_ = 100;
  RequestId id_ = 0;
  int64_t saves_ = 0, loads_ = 0;

 private:
  void AfterSubmit(const StepPlan& plan) override {
    saves_ += static_cast<int64_t>(plan.saves.size());
    loads_ += static_cast<int64_t>(plan.loads.size());
  }
};

TEST_F(PrefixStorageTest, ASnapshotIsSavedOnceItHasBeenIdle) {
  EXPECT_EQ(Ask(700), 0);
  EXPECT_EQ(saves_, 0);
  EXPECT_EQ(engine_->NextDeadline(), now_ + 2);
  now_ += 1.9;
  Run();
  EXPECT_EQ(saves_, 0);
  now_ += 0.2;
  Run();
  EXPECT_EQ(saves_, 1);
  EXPECT_EQ(engine_->NextDeadline(), fox::kNever);
  now_ += 100;
  Run();
  EXPECT_EQ(saves_, 1);
}

TEST_F(PrefixStorageTest, AShortPrefixIsNotSaved) {
  Ask(500);
  Save();
  EXPECT_EQ(saves_, 0);
  Ask(512 + 10, /*first=*/5);
  Save();
  EXPECT_EQ(saves_, 1);
}

TEST_F(PrefixStorageTest, TheNextEngineStartsFromIt) {
  Ask(700);
  Save();
  Restart(kAtOnce);
  EXPECT_EQ(Ask(900), 640);
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(Ask(900), 896);  // from memory
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(engine_->stats().snapshots_landed, 1);
  EXPECT_EQ(Ask(900, /*first=*/3), 0);
}

TEST_F(PrefixStorageTest, AReadIsWaitedForButNotForEver) {
  Ask(700);
  Save();
  Restart(kNever);
  Submit(900);
  EXPECT_EQ(Run(), -1);
  EXPECT_EQ(engine_->stats().waiting, 1);
  EXPECT_EQ(engine_->NextDeadline(), now_ + 2);
  Submit(400, /*first=*/7);
  EXPECT_EQ(Run(), 0);  // others do not wait
  now_ += 2.1;
  EXPECT_EQ(Run(), 0);
  EXPECT_EQ(engine_->stats().waiting, 0);
}

TEST_F(PrefixStorageTest, AFailedReadIsComputed) {
  Ask(700);
  Save();
  Restart(kAtOnce, /*faults=*/1);
  EXPECT_EQ(Ask(900), 0);
  EXPECT_EQ(loads_, 0);
}

// The read of a request that has gone meanwhile frees its buffer, whether it succeeds or not.
TEST_F(PrefixStorageTest, ACancelledRequestLeavesItsRead) {
  for (const double faults : {1.0, 0.0}) {
    SCOPED_TRACE(faults);
    Restart(kAtOnce);
    for (const int32_t first : {0, 3, 5}) Ask(700, first);
    Save();
    Restart(kNever, faults);
    Submit(900);
    EXPECT_EQ(Run(), -1);
    engine_->Cancel(id_, absl::CancelledError("gone"));
    const std::vector<RequestOutput> outputs = engine_->Step(now_);
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_EQ(outputs[0].finish->status, absl::CancelledError("gone"));
    store_->SetDelays(kAtOnce);
    Run();
    EXPECT_EQ(engine_->stats().snapshots_landed, faults > 0 ? 0 : 1);
    EXPECT_EQ(Ask(900), faults > 0 ? 0 : 640);  // from memory, or computed
  }
  EXPECT_EQ(loads_, 1);
  for (const int32_t first : {3, 5}) Submit(900, first);
  EXPECT_EQ(Run(), 640);
  EXPECT_EQ(loads_, 3);
}

// Two requests with the same prefix cause one read; a third prefix waits for a buffer.
TEST_F(PrefixStorageTest, BuffersAreShared) {
  for (const int32_t first : {0, 3, 5}) Ask(700, first);
  Save();
  EXPECT_EQ(saves_, 3);
  Restart(kAtOnce);
  Submit(900, 0);
  Submit(900, 3);
  Submit(900, 0);
  Submit(900, 5);
  EXPECT_GE(Run(), 640);
  EXPECT_EQ(loads_, 3);
  EXPECT_EQ(engine_->stats().finished, 4);
  EXPECT_GE(engine_->stats().prefix_found_tokens, 4 * 640);
}

TEST_F(PrefixStorageTest, AClearedStoreGivesNothingBack) {
  Ask(700);
  Save();
  engine_->FlushPrefixCache();
  Run();
  EXPECT_EQ(engine_->stats().snapshots, 0);
  EXPECT_EQ(Ask(900), 0);
  // Also what is being written, or read.
  Restart(kNever);
  Ask(700, /*first=*/9);
  engine_->SavePrefixCache();
  Run();
  engine_->FlushPrefixCache();
  Run();
  store_->Serve(*executor_, 0, kAtOnce);
  EXPECT_EQ(store_->Find("", -10, std::vector<int32_t>(900, 0), 64, 0, 900), 0);
}

// One salt's snapshots go, in the pool and in the store, and no others.
TEST_F(PrefixStorageTest, ANamespaceIsCleared) {
  for (const char* salt : {"s", "t"}) EXPECT_EQ(Ask(700, 0, salt), 0) << salt;
  Save();
  EXPECT_EQ(engine_->stats().snapshots, 2);
  engine_->FlushPrefixCache("e3b98a4da31a127d");  // the beginning of t's SHA-256
  Run();
  EXPECT_EQ(engine_->stats().snapshots, 1);
  EXPECT_EQ(Ask(900, 0, "s"), 640);
  EXPECT_EQ(Ask(900, 0, "t"), 0);
  EXPECT_EQ(loads_, 0);
  engine_->FlushPrefixCache("e3b98a4da31a127d");
  Run();
  Restart(kAtOnce);
  EXPECT_EQ(Ask(900, 0, "s"), 896);
  EXPECT_EQ(Ask(900, 0, "t"), 0);
}

// A snapshot larger than a buffer, and one for which all buffers are in use, are dropped unsaved.
TEST_F(PrefixStorageTest, WithoutABufferASnapshotIsLost) {
  fake_.limits.snapshot_slots = 1;
  SetStaging(2, /*pages=*/39, &fake_.limits);  // of 40
  Restart(kAtOnce);
  Ask(650);
  Ask(650, /*first=*/3);
  EXPECT_EQ(saves_, 0);
  EXPECT_EQ(engine_->stats().snapshots_lost, 1);
  SetStaging(2, 40, &fake_.limits);
  Restart(kNever);
  for (const int32_t first : {0, 3, 5}) Ask(650, first);
  EXPECT_EQ(saves_, 1);  // the other buffer is for reads
  EXPECT_EQ(engine_->stats().snapshots_lost, 1);
}

}  // namespace
}  // namespace fox::sim
