// Streaming reads and large matrix products.
#include "tests/bench/machine_peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/core/check.h"
#include "tests/bench/gpu_machine.h"
#include "tests/bench/random_values.h"

namespace fox {
namespace {

constexpr int kSamples = 7, kWarmUps = 2;

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

// Allocates large pages if the system has them, so that address translation does not slow reads.
Buffer AllocateStream(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  FOX_CHECK(data != MAP_FAILED);
  madvise(data, bytes, MADV_HUGEPAGE);
  std::memset(data, 1, bytes);
  return {data, bytes, [](void* at, size_t size) { munmap(at, size); }};
}

// Seconds of reading a buffer with all threads.
absl::StatusOr<Summary> MeasureRead(int64_t bytes) {
  constexpr int64_t kBlock = 4096;  // 256 KiB at a time
  const int64_t count = bytes / static_cast<int64_t>(sizeof(Lanes));
  const Buffer buffer = AllocateStream(static_cast<size_t>(bytes));
  const auto* data = buffer.as<const Lanes>();
  std::vector<double> seconds;
  volatile uint64_t sink = 0;
  for (int run = -kWarmUps; run < kSamples; ++run) {
    const double start = Now();
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t at = 0; at < count; at += kBlock) {
      sum += SumOf(data + at, std::min(kBlock, count - at));
    }
    const double taken = Now() - start;
    sink = sink + sum;
    if (run >= 0) seconds.push_back(taken);
  }
  return Summarize(std::move(seconds));
}

Summary Rate(const Summary& seconds, double amount) {
  return {amount / seconds.median, amount / seconds.max, amount / seconds.min};
}

// Seconds of one call of `work`. All calls run once to warm up; on a GPU they form a graph.
absl::StatusOr<Summary> MeasureCalls(Ops& ops, int calls, int samples,
                                     const std::function<void(int call)>& work) {
  if (ops.queue() != nullptr) return MeasureOnGpu(ops, calls, samples, work);
  std::vector<double> seconds;
  for (int sample = 0; sample <= samples; ++sample) {
    const double start = Now();
    for (int i = 0; i < calls; ++i) work(i);
    if (sample > 0) seconds.push_back((Now() - start) / calls);
  }
  return Summarize(std::move(seconds));
}

// Random activations in the backend's memory.
Buffer RandomRows(Ops& ops, DType dtype, int64_t count, uint64_t seed) {
  std::vector<std::byte> host(static_cast<size_t>(count) * SizeOf(dtype));
  if (dtype == DType::kBF16) {
    FillNormal(reinterpret_cast<BFloat16*>(host.data()), count, seed, 0, 1);
  } else if (dtype == DType::kF64) {
    FillNormal(reinterpret_cast<double*>(host.data()), count, seed, 0, 1);
  } else {
    FillNormal(reinterpret_cast<float*>(host.data()), count, seed, 0, 1);
  }
  Buffer rows = ops.Allocate(host.size());
  ops.CopyToDevice(host.data(), host.size(), rows.data(), nullptr);
  return rows;
}

}  // namespace

absl::StatusOr<MachinePeaks> MeasurePeaks(Ops& ops, DType dtype, int64_t bytes, int64_t size) {
  const bool on_gpu = ops.queue() != nullptr;
  const auto read = on_gpu ? MeasureGpuRead(ops, bytes, kSamples) : MeasureRead(bytes);
  if (!read.ok()) return read.status();
  if (on_gpu) size = std::max<int64_t>(size, 8192);
  const int64_t count = on_gpu ? size : 512;
  std::vector<float> values(static_cast<size_t>(size * size));
  FillNormal(values.data(), size * size, 1, 0, 1);
  const auto weight = ops.Pack({values.data(), DType::kF32, size, size, size});
  const DType wide = on_gpu ? DType::kBF16 : dtype == DType::kF64 ? dtype : DType::kF32;
  const Buffer in = RandomRows(ops, wide, count * size, 2), out = ops.Allocate(in.bytes());
  const MatrixView from{in.data(), wide, count, size, size},
      to{out.data(), wide, count, size, size};
  const auto product = MeasureCalls(ops, on_gpu ? 4 : 1, kSamples, [&](int) {
    ops.Linear({.in = from, .weight = *weight, .out = to}, nullptr);
  });
  if (!product.ok()) return product.status();
  return MachinePeaks{Rate(*read, static_cast<double>(bytes)),
                      Rate(*product, 2.0 * static_cast<double>(count * size * size))};
}

}  // namespace fox
