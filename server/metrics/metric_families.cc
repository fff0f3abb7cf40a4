// MetricFamilies: values and histograms in the form of prometheus-cpp.
#include "server/metrics/metric_families.h"

#include <algorithm>
#include <limits>

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

void MetricFamilies::AddHistogram(const char* name, const char* help, const Histogram& histogram,
                                  const std::vector<double>& bounds, const MetricLabels& labels) {
  auto& out = Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  const std::vector<double>& own = histogram.bounds();
  uint64_t below = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    below += static_cast<uint64_t>(histogram.count(i));
    if (bounds.empty() || std::binary_search(bounds.begin(), bounds.end(), own[i])) {
      out.bucket.push_back({below, own[i]});
    }
  }
  FOX_CHECK(out.bucket.size() == (bounds.empty() ? own : bounds).size());
  below += static_cast<uint64_t>(histogram.count(own.size()));
  out.bucket.push_back({below, std::numeric_limits<double>::infinity()});
  out.sample_count = below;
  out.sample_sum = histogram.sum();
}

}  // namespace fox
