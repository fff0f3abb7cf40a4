// MetricFamilies: a list of metrics in the making: one call a value.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"
#include "server/calls/call_metrics.h"

namespace fox {

// Label names and values.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricFamilies {
 public:
  // `shared` stands on every metric that is added.
  explicit MetricFamilies(MetricLabels shared = {}) : shared_(std::move(shared)) {}

  // Values of one name follow one another; the first brings the help text.
  template <class Value>
  void Gauge(const char* name, const char* help, Value value, const MetricLabels& labels = {}) {
    Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = static_cast<double>(value);
  }
  template <class Value>
  void Counter(const char* name, const char* help, Value value, const MetricLabels& labels = {}) {
    auto& counter = Add(name, help, prometheus::MetricType::Counter, labels).counter;
    counter.value = static_cast<double>(value);
  }
  // With those of its own bounds that are in `bounds`; empty: all.
  void AddHistogram(const char* name, const char* help, const Histogram& histogram,
                    const std::vector<double>& bounds = {}, const MetricLabels& labels = {});

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& Add(const char* name, const char* help, prometheus::MetricType type,
                                const MetricLabels& labels);

  const MetricLabels shared_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace fox
