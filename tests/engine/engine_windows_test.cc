// What heads keep, as it is reported: if asked for, and now and then. That it is right the
// simulation checks (Day::CheckWindows).
#include <vector>

#include "kernels/paged_kv.h"
#include "tests/engine/engine_fixture.h"

namespace fox {
namespace {

class EngineWindowsTest : public EngineTest {
 protected:
  // Heads that keep a page or two.
  void StartForgetting() {
    FakeOptions fake = Roomy();
    fake.min_window = fake.max_window = 2;
    Start(fake);
  }
  void Submit(RequestId id, bool report) {
    Request request = MakeRequest(id, /*prompt=*/300, /*max_tokens=*/40);
    request.report_windows = report;
    ASSERT_TRUE(engine_->Submit(std::move(request), now_).ok());
  }
  // Steps until nothing is left, `seconds` apart.
  void RunAll(Seconds seconds) {
    for (; engine_->HasWork(); now_ += seconds) {
      for (const RequestOutput& output : engine_->Step(now_)) {
        if (output.windows) windows_[output.id].push_back(*output.windows);
      }
    }
  }

  Seconds now_ = 0;
  std::map<RequestId, std::vector<KeptWindows>> windows_;
};

TEST_P(EngineWindowsTest, NotMoreOftenThanTheIntervalForAllTogether) {
  StartForgetting();
  for (RequestId id = 1; id <= 3; ++id) Submit(id, /*report=*/true);
  RunAll(/*seconds=*/kWindowsInterval / 8);
  const double most = now_ / kWindowsInterval + 1;
  for (const auto& [id, windows] : windows_) {
    EXPECT_LE(static_cast<double>(windows.size()), most) << id;
    EXPECT_GE(windows.size(), 3u) << id;
  }
  EXPECT_EQ(windows_.size(), 3u);
}

// Each plan asks for a copy only when a request watches.
TEST_P(EngineWindowsTest, NobodyWatchesNothingIsRead) {
  struct Watch : StepObserver {
    void BeforeSubmit(const StepPlan& plan) override { asked += plan.read_windows ? 1 : 0; }
    int asked = 0;
  } watch;
  FakeOptions fake = Roomy();
  fake.limits.depth = GetParam().depth;
  fake.limits.samples_on_device = GetParam().samples_on_device;
  executor_ = std::make_unique<FakeExecutor>(fake);
  engine_ = std::make_unique<Engine>(options_, *executor_, std::vector<StepObserver*>{&watch});
  Submit(1, /*report=*/false);
  RunAll(/*seconds=*/1);
  EXPECT_EQ(watch.asked, 0);
  Submit(2, /*report=*/true);
  RunAll(/*seconds=*/1);
  EXPECT_GT(watch.asked, 0);
}

TEST_P(EngineWindowsTest, PagesThatWouldBeHeldAreCountedUntilTheyAreReleased) {
  StartForgetting();
  Submit(1, /*report=*/false);
  int64_t most = 0;
  while (engine_->HasWork()) {
    engine_->Step(now_);
    most = std::max(most, engine_->stats().unpruned_pages);
    EXPECT_GE(engine_->stats().unpruned_pages,
              executor_->options().limits.num_pages - engine_->stats().free_pages);
  }
  EXPECT_EQ(most, 2 * PagesFor(339));  // the last token is not fed
  EXPECT_EQ(engine_->stats().unpruned_pages, 0);
  EXPECT_GT(engine_->stats().pages_evicted, 0);
}

INSTANTIATE_TEST_SUITE_P(Depths, EngineWindowsTest,
                         testing::Values(Pipeline{1, false}, Pipeline{2, false},
                                         Pipeline{2, true}));

}  // namespace
}  // namespace fox
