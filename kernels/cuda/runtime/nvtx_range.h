// NvtxRange: marks what the host enqueues while it lives, for Nsight. Costs a few nanoseconds when
// no profiler listens.
#pragma once

#include <nvtx3/nvToolsExt.h>

namespace fox::cuda {

class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace fox::cuda
