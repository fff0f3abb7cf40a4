// TestMatrix: a matrix on the host (as floats that its type can hold) and the device, with a gap
// after every row; and the results of row transforms in float64. For tests of row operations and
// linear layers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/interface/linear_params.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda::testing {

inline constexpr float kGapValue = -77;
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Uniform in [-scale, scale): cheap, as tests sample many.
class Uniform {
 public:
  explicit Uniform(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  float operator()(float scale) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (static_cast<float>(state_ >> 40) * 0x1p-23f - 1) * scale;
  }

 private:
  uint64_t state_;
};

class TestMatrix {
 public:
  // All NaN, on the device too; gaps hold kGapValue.
  TestMatrix(DType dtype, int64_t rows, int64_t cols, int64_t gap)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        host_(static_cast<size_t>(rows * stride_), kNaN) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = cols; c < stride_; ++c) host_[Index(r, c)] = kGapValue;
    }
    if (dtype == DType::kF32) {
      f32_ = DeviceArray<float>(host_.size());
    } else {
      bf16_ = DeviceArray<BFloat16>(host_.size());
    }
    Upload();
  }
  // Uniform in [-scale, scale).
  TestMatrix(DType dtype, int64_t rows, int64_t cols, int64_t gap, Uniform& uniform, float scale)
      : TestMatrix(dtype, rows, cols, gap) {
    FillUniform(uniform, scale);
  }

  float& At(int64_t r, int64_t c) { return host_[Index(r, c)]; }
  float At(int64_t r, int64_t c) const { return host_[Index(r, c)]; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  const std::vector<float>& host() const { return host_; }
  // The elements of the host's copy row by row, without the gaps.
  std::vector<float> values() const {
    std::vector<float> out;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) out.push_back(host_[Index(r, c)]);
    }
    return out;
  }

  MatrixView view() const {
    void* data = dtype_ == DType::kF32 ? static_cast<void*>(f32_.data()) : bf16_.data();
    return {data, dtype_, rows_, cols_, stride_};
  }

  void FillUniform(Uniform& uniform, float scale) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) At(r, c) = uniform(scale);
    }
    Upload();
  }

  // Rounds the host's values to the type and copies them.
  void Upload() {
    if (dtype_ == DType::kF32) return f32_.CopyFrom(host_);
    std::vector<BFloat16> narrow(host_.size());
    for (size_t i = 0; i < host_.size(); ++i) {
      narrow[i] = BFloat16(host_[i]);
      host_[i] = static_cast<float>(narrow[i]);
    }
    bf16_.CopyFrom(narrow);
  }

  // Fetches the device's values; the gaps must be as they were.
  void Download() {
    if (dtype_ == DType::kF32) {
      host_ = f32_.ToHost();
    } else {
      const std::vector<BFloat16> narrow = bf16_.ToHost();
      for (size_t i = 0; i < host_.size(); ++i) host_[i] = static_cast<float>(narrow[i]);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = cols_; c < stride_; ++c) {
        ASSERT_EQ(At(r, c), kGapValue) << "gap of row " << r << " was written";
      }
    }
  }

 private:
  size_t Index(int64_t r, int64_t c) const { return static_cast<size_t>(r * stride_ + c); }

  DType dtype_;
  int64_t rows_, cols_, stride_;
  std::vector<float> host_;
  DeviceArray<float> f32_;
  DeviceArray<BFloat16> bf16_;
};

inline std::vector<double> RowOf(const TestMatrix& m, int64_t row) {
  std::vector<double> x(static_cast<size_t>(m.cols()));
  for (size_t c = 0; c < x.size(); ++c) x[c] = m.At(row, static_cast<int64_t>(c));
  return x;
}

// The norm with these weights.
inline RmsNorm NormBy(const TestMatrix& weight) { return {weight.view().data, 1e-5}; }

// A row normed by NormBy, in float64.
inline std::vector<double> NormedRow(const TestMatrix& in, int64_t row, const TestMatrix& weight) {
  std::vector<double> x = RowOf(in, row);
  double square = 0;
  for (const double value : x) square += value * value;
  const double scale = 1 / std::sqrt(square / static_cast<double>(x.size()) + NormBy(weight).eps);
  for (size_t c = 0; c < x.size(); ++c) x[c] *= scale * weight.At(0, static_cast<int64_t>(c));
  return x;
}

inline double Activated(double x, Activation act) {
  return (act == Activation::kSilu ? x : 1.0) / (1.0 + std::exp(-x));
}

// Relative error of a norm before it is rounded to bf16: sums of squares of n terms, rsqrt and a
// few products in float32.
inline double NormError(int64_t cols) { return (static_cast<double>(cols) / 16 + 64) * 0x1p-24; }

}  // namespace fox::cuda::testing
