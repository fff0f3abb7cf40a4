// DeviceArray: device memory of a test, filled from the host or with a byte that makes every
// float type NaN, and freed by itself; DeviceMemory: many of them. CUDA errors are test failures.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/core/dtype.h"

namespace fox::cuda::testing {

// All ones: NaN as bf16, float and double, -1 as an integer.
inline constexpr int kPoison = 0xff;

// The number that a bf16 is.
inline double Widen(uint16_t bits) {
  return static_cast<double>(static_cast<float>(std::bit_cast<BFloat16>(bits)));
}

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  // Poisoned.
  explicit DeviceArray(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, bytes()), cudaSuccess);
    Fill(kPoison);
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { CopyFrom(host); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(DeviceArray&& other) noexcept { Swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    Swap(other);
    return *this;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

  // Waits for the device's work, as does ToHost, and then for the copy, which cudaMemcpy may only
  // begin: streams that are not blocking, as a queue's, do not wait for it.
  void CopyFrom(const std::vector<T>& host) {
    ASSERT_EQ(host.size(), size_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  std::vector<T> ToHost() const {
    std::vector<T> host(size_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }
  // Sets every byte; done when it returns.
  void Fill(int byte) {
    EXPECT_EQ(cudaMemset(data_, byte, bytes()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

 private:
  void Swap(DeviceArray& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

// Arrays that live as long as this does; null where they are empty.
class DeviceMemory {
 public:
  template <typename T>
  T* Copy(const std::vector<T>& host) {
    return host.empty() ? nullptr : Keep(std::make_shared<DeviceArray<T>>(host));
  }
  template <typename T>
  T* Poison(size_t size) {
    return Keep(std::make_shared<DeviceArray<T>>(size));
  }

 private:
  template <typename T>
  T* Keep(std::shared_ptr<DeviceArray<T>> array) {
    arrays_.push_back(array);
    return array->data();
  }

  std::vector<std::shared_ptr<void>> arrays_;
};

}  // namespace fox::cuda::testing
