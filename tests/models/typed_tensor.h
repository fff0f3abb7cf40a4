// TypedTensor: a weight made by a test, held in memory in the type that a file would have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/core/dtype.h"
#include "models/checkpoint/host_tensor.h"

namespace fox::testing {

// A tensor in memory of type `dtype`. `values` are the given values, rounded to that type.
struct TypedTensor {
  TypedTensor() = default;
  TypedTensor(const std::vector<double>& given, std::vector<int64_t> extents, DType type)
      : values(given), shape(std::move(extents)), dtype(type) {
    bytes.resize(given.size() * SizeOf(type));
    for (size_t i = 0; i < given.size(); ++i) Put(i);
  }
  HostTensor view() const {
    return values.empty() ? HostTensor{} : HostTensor{bytes.data(), dtype, shape};
  }

  std::vector<double> values;
  std::vector<int64_t> shape;
  DType dtype = DType::kF64;
  std::vector<std::byte> bytes;

 private:
  template <typename T>
  void Store(size_t i, T value) {
    std::copy_n(reinterpret_cast<const std::byte*>(&value), sizeof(T),
                bytes.data() + i * sizeof(T));
  }
  void Put(size_t i) {
    const auto narrow = static_cast<float>(values[i]);
    if (dtype == DType::kF64) {
      Store(i, values[i]);
    } else if (dtype == DType::kF32) {
      values[i] = static_cast<double>(narrow);
      Store(i, narrow);
    } else {
      const BFloat16 half(narrow);
      values[i] = static_cast<double>(static_cast<float>(half));
      Store(i, half.bits);
    }
  }
};

}  // namespace fox::testing
