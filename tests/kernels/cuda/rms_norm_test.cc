// RmsNormRows against a float64 computation on the host, over shapes, types and row strides.
#include "kernels/cuda/rms_norm.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/core/dtype.h"

namespace fox::cuda {
namespace {

constexpr double kEps = 1e-6;

// Device memory that holds `host`'s elements.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> ToHost() const {
    std::vector<T> host(size_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

template <typename T>
constexpr DType kTypeOf = std::is_same_v<T, float> ? DType::kF32 : DType::kBF16;

// Half a unit in the last place, relative.
template <typename T>
constexpr double kRounding = std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8 / 2;

// Rows are `stride` apart; the elements between must stay as they were.
template <typename In, typename Out>
void ExpectRmsNorm(int64_t rows, int64_t cols, int64_t stride) {
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + cols));
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<In> in(static_cast<size_t>(rows * stride));
  for (In& x : in) x = In(normal(random));
  std::vector<float> weight(static_cast<size_t>(cols));
  for (float& w : weight) w = normal(random);
  const Out untouched(-77.0f);

  const DeviceArray<In> device_in(in);
  const DeviceArray<float> device_weight(weight);
  const DeviceArray<Out> device_out(std::vector<Out>(in.size(), untouched));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const MatrixView in_view{device_in.data(), kTypeOf<In>, rows, cols, stride};
  const MatrixView out_view{device_out.data(), kTypeOf<Out>, rows, cols, stride};
  ASSERT_EQ(RmsNormRows(in_view, device_weight.data(), kEps, out_view, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  const std::vector<Out> out = device_out.ToHost();

  // A sum of n positive terms in any order: at most n roundings, halved by the square root; then
  // rsqrt (2 units in the last place), two products, and the rounding to the output type.
  const double tolerance = (static_cast<double>(cols) / 2 + 8) * 0x1p-24 + kRounding<Out>;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double x = static_cast<float>(in[static_cast<size_t>(r * stride + c)]);
      squares += x * x;
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + kEps);
    for (int64_t c = 0; c < stride; ++c) {
      const size_t at = static_cast<size_t>(r * stride + c);
      const double got = static_cast<float>(out[at]);
      if (c >= cols) {
        ASSERT_EQ(got, -77.0) << "padding of row " << r << " was written";
        continue;
      }
      const double want = static_cast<float>(in[at]) * scale * weight[static_cast<size_t>(c)];
      ASSERT_FALSE(std::isnan(got));
      ASSERT_LE(std::abs(got - want), tolerance * std::abs(want) + 1e-37)
          << "row " << r << " column " << c;
    }
  }
}

class RmsNormTest : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  void SetUp() override {
    int devices = 0;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess) << "this test needs a GPU";
    ASSERT_GT(devices, 0);
  }
};

TEST_P(RmsNormTest, MatchesFloat64) {
  const auto [rows, cols] = GetParam();
  for (int64_t gap : {0, 5}) {
    ExpectRmsNorm<float, float>(rows, cols, cols + gap);
    ExpectRmsNorm<float, BFloat16>(rows, cols, cols + gap);
    ExpectRmsNorm<BFloat16, float>(rows, cols, cols + gap);
    ExpectRmsNorm<BFloat16, BFloat16>(rows, cols, cols + gap);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormTest,
                         testing::Values(std::tuple(0, 8), std::tuple(1, 1), std::tuple(3, 31),
                                         std::tuple(2, 257), std::tuple(65, 384),
                                         std::tuple(7, 1536), std::tuple(1000, 2048)),
                         [](const auto& shape) {
                           return std::to_string(std::get<0>(shape.param)) + "x" +
                                  std::to_string(std::get<1>(shape.param));
                         });

}  // namespace
}  // namespace fox::cuda
