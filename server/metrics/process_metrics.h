// The process under the names that every Prometheus client library uses: process_*.
#pragma once

#include "server/metrics/metric_families.h"

namespace fox {

// From /proc/self and the allocator; what cannot be read is left out.
void AddProcessMetrics(MetricFamilies* out);

}  // namespace fox
