// MetricFamilies: a list of metrics in the making: one call a value.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"
#include "server/calls/histogram.h"

namespace fox {

// Label names and values.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricFamilies {
 public:
  // `shared` stands on every metric that is added.
  explicit MetricFamilies(MetricLabels shared = {}) : shared_(std::move(shared)) {}

  // Values of one name follow one another; the first brings the help text.
  void Gauge(const char* name, const char* help, double value, const MetricLabels& labels = {});
  void Counter(const char* name, const char* help, double value, const MetricLabels& labels = {});
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
