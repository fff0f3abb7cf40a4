// The server's numbers as Prometheus metrics, made at each scrape: counters of the engine, times of
// calls, the budget, the process. Names begin with fox_; units and types follow Prometheus'
// conventions. Metrics under vLLM's names follow vLLM instead.
#pragma once

#include <vector>

#include "prometheus/metric_family.h"
#include "server/calls/server_core.h"
#include "server/http/port/http_server.h"
#include "server/metrics/metric_families.h"
#include "server/metrics/step_metrics.h"

namespace fox {

// All metrics at this moment; `vllm_aliases`: also under vLLM's names. Any thread. Takes the
// engine's lock to copy its counters.
std::vector<prometheus::MetricFamily> CollectMetrics(const ServerCore& core,
                                                     const StepMetrics& steps, bool vllm_aliases);

// Starts `server`, the HTTP server of --metrics-port, which answers GET /metrics in Prometheus'
// text format on a thread of its own, within a millisecond. `core` and `steps` must outlive it.
void ExposeMetrics(const ServerCore& core, const StepMetrics& steps, bool vllm_aliases,
                   HttpServer* server);

// Adds the process_* metrics of all Prometheus client libraries, from /proc/self and the allocator.
// Unreadable values are left out.
void AddProcessMetrics(MetricFamilies* out);

// Adds the server's numbers under vLLM's names, for gateways, autoscalers and dashboards that read
// them. Names, types and buckets are as vLLM documents them. `out` must have the shared labels
// {{"model_name", ...}, {"engine", "0"}}.
void AddVllmAliases(const ServerCore& core, const EngineStats& stats, const StepMetrics& steps,
                    MetricFamilies* out);

}  // namespace fox
