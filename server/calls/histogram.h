// Histogram: how often a value fell into which bucket, and the sum of all. Recording is two relaxed
// additions, cheap enough for every token; reading may be slow.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fox {

// Methods may be called from any thread. What is read while others record may lack what they have
// just added.
class Histogram {
 public:
  static constexpr size_t kMostBounds = 31;

  // `bounds`: where buckets end, inclusive, ascending, at most kMostBounds; one more takes the
  // rest. `unit`: the sum is kept in multiples of it.
  Histogram(std::vector<double> bounds, double unit) : bounds_(std::move(bounds)), unit_(unit) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(std::llround(value / unit_), std::memory_order_relaxed);
  }

  const std::vector<double>& bounds() const { return bounds_; }
  // In the bucket that ends at bounds()[i], and in no earlier one; bounds().size(): the rest.
  int64_t count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return static_cast<double>(sum_.load(std::memory_order_relaxed)) * unit_; }

 private:
  const std::vector<double> bounds_;
  const double unit_;
  std::array<std::atomic<int64_t>, kMostBounds + 1> counts_{};
  std::atomic<int64_t> sum_{0};
};

}  // namespace fox
