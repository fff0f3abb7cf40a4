// vLLM's metrics of the same server, for what reads those names: gateways, autoscalers, dashboards.
// One for one with what vLLM documents, buckets included; what FoX has not got is 0.
#pragma once

#include <string>

#include "server/calls/server_core.h"
#include "server/metrics/metric_families.h"
#include "server/metrics/step_metrics.h"

namespace fox {

// `out` should stamp MetricLabels{{"model_name", ...}, {"engine", "0"}}.
void AddVllmAliases(const ServerCore& core, const EngineStats& stats, const StepMetrics& steps,
                    MetricFamilies* out);

}  // namespace fox
