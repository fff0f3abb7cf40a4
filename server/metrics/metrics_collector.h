// The server's numbers as Prometheus metrics, made at a scrape: what the engine counts, what calls
// leave behind, the budget, the process. Names begin with fox_; units and types follow Prometheus'
// conventions, except for vLLM's names, which are what they are.
#pragma once

#include <vector>

#include "prometheus/metric_family.h"
#include "server/calls/server_core.h"
#include "server/http/http_server.h"
#include "server/metrics/metric_families.h"
#include "server/metrics/step_metrics.h"

namespace fox {

// Any thread. Takes the engine's lock for a copy of its counters.
std::vector<prometheus::MetricFamily> CollectMetrics(const ServerCore& core,
                                                     const StepMetrics& steps, bool vllm_aliases);

// Starts `server`, which has a port (--metrics-port) and a thread of its own: there the numbers are
// made, in a millisecond, at GET /metrics in Prometheus' text format. `core` and `steps` must
// outlive it.
void ExposeMetrics(const ServerCore& core, const StepMetrics& steps, bool vllm_aliases,
                   HttpServer* server);

// The process under the names that every Prometheus client library uses: process_*, from /proc/self
// and the allocator; what cannot be read is left out.
void AddProcessMetrics(MetricFamilies* out);
// vLLM's metrics of the same server, for what reads those names: gateways, autoscalers, dashboards.
// One for one with what vLLM documents, buckets included; what FoX has not got is 0. `out` should
// stamp MetricLabels{{"model_name", ...}, {"engine", "0"}}.
void AddVllmAliases(const ServerCore& core, const EngineStats& stats, const StepMetrics& steps,
                    MetricFamilies* out);

}  // namespace fox
