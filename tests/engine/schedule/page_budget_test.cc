// PageForecast: learns from sequences whose heads keep windows. The simulation checks the promise
// of PageLedger after every plan (Day::CheckPromise).
#include "engine/schedule/page_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, tokens);
    forecast.Observe(begin, end, std::llround(Kept(end, dense)));
  }
}

TEST(PageForecastTest, SequencesShowTheCurve) {
  for (const int64_t chunk : {64, 8192}) {
    SCOPED_TRACE(chunk);
    PageForecast forecast(kLists);
    for (int i = 0; i < 20; ++i) Serve(forecast, 12000, chunk);
    for (const int64_t tokens : {8192, 10000, 12000}) {
      EXPECT_NEAR(forecast.At(tokens), Kept(tokens), 0.03 * Kept(tokens)) << tokens;
    }
    // No sequence was that long, so the share at the longest length seen counts.
    EXPECT_NEAR(forecast.At(65536), Kept(65536), 0.05 * Kept(65536));
    EXPECT_EQ(forecast.At(0), 0);
  }
}

TEST(PageForecastTest, NewHabitsReplaceOldOnes) {
  PageForecast forecast(kLists);
  for (int i = 0; i < 100; ++i) Serve(forecast, 4096, 64);
  for (int i = 0; i < 200; ++i) Serve(forecast, 4096, 64, kLists);
  EXPECT_GT(forecast.At(4096), 0.9 * Kept(4096, kLists));
}

}  // namespace
}  // namespace fox
