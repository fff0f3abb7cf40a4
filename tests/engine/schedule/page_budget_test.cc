// What is learnt from sequences whose heads keep windows, and what is enough for several. What the
// ledger promises is checked by the simulation after every plan (Day::CheckPromise).
#include "engine/schedule/page_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/paged_kv.h"

namespace fox {
namespace {

constexpr int64_t kLists = 8;

// Two of eight lists keep everything, the others two rows.
double Kept(int64_t tokens, double dense = 2) {
  const int64_t rows = PagesFor(tokens);
  return dense * static_cast<double>(rows) +
         (kLists - dense) * static_cast<double>(std::min<int64_t>(rows, 2));
}

// A sequence that was fed in chunks and has ended.
void Serve(PageForecast& forecast, int64_t tokens, int64_t chunk, double dense = 2) {
  for (int64_t end = std::min(chunk, tokens);; end = std::min(end + chunk, tokens)) {
    forecast.Observe(0, end, std::llround(Kept(end, dense)));
    if (end == tokens) break;
  }
  forecast.Release(0);
}

TEST(PageForecastTest, BeforeAnyExperienceEverythingIsKept) {
  const PageForecast forecast(kLists, 2);
  EXPECT_EQ(forecast.At(1000, -1).pages, kLists * PagesFor(1000));
  EXPECT_EQ(forecast.At(1000, 1).pages, kLists * PagesFor(1000));
  EXPECT_EQ(forecast.At(1000, -1).deviation, 0);
}

TEST(PageForecastTest, SequencesFedByPagesShowTheCurve) {
  PageForecast forecast(kLists, 2);
  Serve(forecast, 4096, 64);
  for (const int64_t tokens : {64, 128, 256, 1000, 4096}) {
    EXPECT_NEAR(forecast.At(tokens, -1).pages, Kept(tokens), 1e-9) << tokens;
  }
  // No sequence has been there: as at the longest position seen.
  EXPECT_NEAR(forecast.At(65536, -1).pages, Kept(65536), 1e-9);
}

TEST(PageForecastTest, LargeChunksShowTheirSum) {
  PageForecast forecast(kLists, 2);
  for (int i = 0; i < 20; ++i) Serve(forecast, 12000, 8192);
  for (const int64_t tokens : {8192, 10000, 12000}) {
    EXPECT_NEAR(forecast.At(tokens, -1).pages, Kept(tokens), 0.02 * Kept(tokens)) << tokens;
  }
}

TEST(PageForecastTest, ARunningSequenceCountsAsItShowsItself) {
  PageForecast forecast(kLists, 2);
  for (int i = 0; i < 60; ++i) Serve(forecast, 4096, 64);
  forecast.Observe(1, 1024, 2 * std::llround(Kept(1024)));
  EXPECT_NEAR(forecast.At(2048, 1).pages, 2 * Kept(2048), 0.05 * Kept(2048));
  EXPECT_NEAR(forecast.At(2048, -1).pages, Kept(2048), 0.05 * Kept(2048));
  forecast.Release(1);
  forecast.Observe(1, 1024, 10);  // that less is kept is not yet believed
  EXPECT_GE(forecast.At(2048, 1).pages, Kept(2048));
}

TEST(PageForecastTest, DifferencesAmongSequencesAreADeviation) {
  PageForecast forecast(kLists, 2);
  for (int i = 0; i < 200; ++i) Serve(forecast, 4096, 64, i % 2 == 0 ? 1.5 : 2.5);
  const PageForecast::Estimate estimate = forecast.At(4096, -1);
  EXPECT_NEAR(estimate.pages, Kept(4096), 0.05 * Kept(4096));
  EXPECT_NEAR(estimate.deviation, 0.5 * (PagesFor(4096) - 2), 5);
}

TEST(PageForecastTest, NewHabitsReplaceOldOnes) {
  PageForecast forecast(kLists, 2);
  for (int i = 0; i < 100; ++i) Serve(forecast, 4096, 64);
  for (int i = 0; i < 200; ++i) Serve(forecast, 4096, 64, kLists);
  EXPECT_GT(forecast.At(4096, -1).pages, 0.9 * Kept(4096, kLists));
}

TEST(PageDemandTest, MeansAddUpAndDeviationsLess) {
  PageDemand demand;
  for (int i = 0; i < 4; ++i) demand.Add({10, 9});
  EXPECT_EQ(demand.pages(), 40 + 2 * 6);
  demand.Add({0.5, 0});
  EXPECT_EQ(demand.pages(), 53);
}

}  // namespace
}  // namespace fox
