// MetricsCollector: the server's numbers as Prometheus metrics, made at a scrape: what
// the engine counts, what calls leave behind, the budget, the process. Names begin with fox_; units
// and types follow Prometheus' conventions, except for vLLM's names, which are what they are.
#pragma once

#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/calls/server_core.h"
#include "server/metrics/step_metrics.h"

namespace fox {

class MetricsCollector : public prometheus::Collectable {
 public:
  // Both must outlive the collector.
  MetricsCollector(const ServerCore& core, const StepMetrics& steps, bool vllm_aliases)
      : core_(core), steps_(steps), vllm_aliases_(vllm_aliases) {}

  // Any thread. Takes the engine's lock for a copy of its counters.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const ServerCore& core_;
  const StepMetrics& steps_;
  const bool vllm_aliases_;
};

}  // namespace fox
