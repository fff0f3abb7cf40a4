// PageForecast: what is learnt from sequences whose heads keep windows.
#include "engine/schedule/page_forecast.h"

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
  EXPECT_EQ(forecast.PerToken(1000), static_cast<double>(kLists) / kPageTokens);
}

TEST(PageForecastTest, SequencesFedByPagesShowTheCurve) {
  PageForecast forecast(kLists, 2);
  Serve(forecast, 4096, 64);
  for (const int64_t tokens : {64, 128, 256, 1000, 4096}) {
    EXPECT_NEAR(forecast.At(tokens, -1).pages, Kept(tokens), 1e-9) << tokens;
  }
  EXPECT_NEAR(forecast.PerToken(3000), 2.0 / kPageTokens, 1e-9);
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

// One row of an octave is a page taken or a page evicted, and no rate.
TEST(PageForecastTest, AFewRowsOfAnOctaveShowNothing) {
  PageForecast forecast(kLists, 2);
  Serve(forecast, 2048, 64);
  forecast.Observe(0, 2048, 70);
  forecast.Observe(0, 2049, 0);
  forecast.Release(0);
  EXPECT_NEAR(forecast.PerToken(2048), 2.0 / kPageTokens, 0.6 / kPageTokens);
  EXPECT_GT(forecast.PerToken(2048), 0);
}

}  // namespace
}  // namespace fox
