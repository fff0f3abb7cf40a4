// MetricFamilies: builds the list of metrics of one scrape, with one call for each value.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "prometheus/histogram.h"
#include "prometheus/metric_family.h"

namespace fox {

// Names and values of labels.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricFamilies {
 public:
  // Every metric gets the labels `shared`.
  explicit MetricFamilies(MetricLabels shared = {}) : shared_(std::move(shared)) {}

  // Adds a value. Values of one name must be added one after another; `help` of the first counts.
  template <class Value>
  void Gauge(const char* name, const char* help, Value value, const MetricLabels& labels = {}) {
    Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = static_cast<double>(value);
  }
  template <class Value>
  void Counter(const char* name, const char* help, Value value, const MetricLabels& labels = {}) {
    auto& counter = Add(name, help, prometheus::MetricType::Counter, labels).counter;
    counter.value = static_cast<double>(value);
  }
  // Adds a histogram with the buckets in `bounds`, each a bound of `histogram`; empty: all buckets.
  void AddHistogram(const char* name, const char* help, const prometheus::Histogram& histogram,
                    const std::vector<double>& bounds = {}, const MetricLabels& labels = {});

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& Add(const char* name, const char* help, prometheus::MetricType type,
                                const MetricLabels& labels);

  const MetricLabels shared_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace fox
