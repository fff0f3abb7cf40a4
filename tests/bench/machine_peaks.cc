// Streaming reads and large products. See machine_peaks.h.
#include "tests/bench/machine_peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr int kWarmUps = 2;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOX_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOX_VECTOR_CLONES
#endif

using Lanes = uint64_t __attribute__((vector_size(64)));

// Four sums that do not wait for one another.
FOX_VECTOR_CLONES uint64_t SumOf(const Lanes* data, int64_t count) {
  Lanes a{}, b{}, c{}, d{};
  for (int64_t i = 0; i + 4 <= count; i += 4) {
    a += data[i];
    b += data[i + 1];
    c += data[i + 2];
    d += data[i + 3];
  }
  a += b + c + d;
  uint64_t sum = 0;
  for (int lane = 0; lane < 8; ++lane) sum += a[lane];
  return sum;
}

// Memory in large pages where the system has them: address translation is not what is measured.
Buffer AllocateStream(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  FOX_CHECK(data != MAP_FAILED);
  madvise(data, bytes, MADV_HUGEPAGE);
  std::memset(data, 1, bytes);
  return {data, bytes, [](void* at, size_t size) { munmap(at, size); }};
}

std::vector<float> RandomFloats(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

void FillRandom(const Buffer& buffer, DType wide, const std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (wide == DType::kF64) {
      buffer.as<double>()[i] = static_cast<double>(values[i]);
    } else {
      buffer.as<float>()[i] = values[i];
    }
  }
}

}  // namespace

Summary MeasureReadBandwidth(int64_t bytes, int repeat) {
  constexpr int64_t kBlock = 4096;  // 256 KiB at a time
  const int64_t count = std::max<int64_t>(bytes / static_cast<int64_t>(sizeof(Lanes)), 4);
  const Buffer buffer = AllocateStream(static_cast<size_t>(count) * sizeof(Lanes));
  const auto* data = buffer.as<const Lanes>();
  std::vector<double> rates;
  volatile uint64_t sink = 0;
  for (int run = -kWarmUps; run < repeat; ++run) {
    const double start = Now();
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t at = 0; at < count; at += kBlock) {
      sum += SumOf(data + at, std::min(kBlock, count - at));
    }
    const double seconds = Now() - start;
    sink = sink + sum;
    if (run >= 0) rates.push_back(static_cast<double>(buffer.bytes()) / seconds);
  }
  return Summarize(std::move(rates));
}

Summary MeasureMatmul(Ops& ops, DType wide, int64_t size, int repeat) {
  constexpr int64_t kRows = 512;
  std::vector<float> values = RandomFloats(size * size);
  const auto weight = ops.Pack({values.data(), DType::kF32, size, size, size});
  const auto bytes = static_cast<size_t>(kRows * size) * SizeOf(wide);
  const Buffer in = ops.Allocate(bytes), out = ops.Allocate(bytes);
  FillRandom(in, wide, RandomFloats(kRows * size));
  const MatrixView from{in.data(), wide, kRows, size, size},
      to{out.data(), wide, kRows, size, size};
  std::vector<double> rates;
  for (int run = -kWarmUps; run < repeat; ++run) {
    const double start = Now();
    ops.Linear({.in = from, .weight = *weight, .out = to}, nullptr);
    const double seconds = Now() - start;
    if (run >= 0) rates.push_back(2.0 * static_cast<double>(kRows * size * size) / seconds);
  }
  return Summarize(std::move(rates));
}

}  // namespace fox
