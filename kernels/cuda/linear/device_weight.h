// DeviceWeight: a linear layer's weight in device memory, [out, in] bf16, row-major, `out` padded
// with zero rows to a multiple of 16 (reads past `out` are in bounds).
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/linear_params.h"

namespace fox::cuda {

class DeviceWeight : public PackedWeight {
 public:
  DeviceWeight(int64_t out, int64_t in, Buffer data)
      : PackedWeight(out, in, static_cast<size_t>(out * in) * SizeOf(DType::kBF16)),
        data_(std::move(data)) {}

  const void* data() const { return data_.data(); }

 private:
  Buffer data_;
};

// Of the weights that CudaOps packed.
inline const DeviceWeight& OnDevice(const PackedWeight& weight) {
  return static_cast<const DeviceWeight&>(weight);
}

}  // namespace fox::cuda
