// MetricFamilies: values and histograms in the form of prometheus-cpp.
#include "server/metrics/metric_families.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace fox {

prometheus::ClientMetric& MetricFamilies::Add(const char* name, const char* help,
                                              prometheus::MetricType type,
                                              const MetricLabels& labels) {
  if (families_.empty() || families_.back().name != name) {
    // Prometheus refuses a scrape that has a name twice.
    FOX_CHECK(std::none_of(families_.begin(), families_.end(),
                           [&](const auto& family) { return family.name == name; }));
    families_.push_back({name, help, type, {}});
  }
  FOX_CHECK(families_.back().type == type);
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  for (const MetricLabels* list : {&shared_, &labels}) {
    for (const auto& [key, value] : *list) metric.label.push_back({key, value});
  }
  return metric;
}

void MetricFamilies::AddHistogram(const char* name, const char* help,
                                  const prometheus::Histogram& histogram,
                                  const std::vector<double>& bounds, const MetricLabels& labels) {
  auto& out = Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  out = histogram.Collect().histogram;
  if (bounds.empty()) return;
  std::erase_if(out.bucket, [&](const auto& bucket) {
    return !std::isinf(bucket.upper_bound) &&
           !std::binary_search(bounds.begin(), bounds.end(), bucket.upper_bound);
  });
  FOX_CHECK(out.bucket.size() == bounds.size() + 1);
}

}  // namespace fox
