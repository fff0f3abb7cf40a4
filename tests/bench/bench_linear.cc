// fox-bench linear: each kind of matrix product of the model, by rows, against the larger of two
// floors: its weight's bytes at the measured bandwidth, its multiplications at the measured peak.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

struct LinearKind {
  const char* name;
  std::vector<const PackedWeight*> weights;  // of all layers: run in turn, as the model does
};

std::vector<LinearKind> KindsOf(const FoxWeights& weights) {
  std::vector<LinearKind> kinds = {
      {"projection", {}}, {"o", {}}, {"gate_up", {}}, {"down", {}}, {"lm_head", {}}};
  for (const LayerWeights& layer : weights.layers) {
    kinds[0].weights.push_back(layer.projection.get());
    kinds[1].weights.push_back(layer.o.get());
    kinds[2].weights.push_back(layer.gate_up.get());
    kinds[3].weights.push_back(layer.down.get());
  }
  kinds[4].weights.push_back(weights.lm_head.get());
  return kinds;
}

// Random numbers: zeros run faster. Splitmix, mapped to [-1, 1).
void FillRandom(const MatrixView& view) {
  uint64_t state = 1;
  for (int64_t i = 0; i < view.rows * view.cols; ++i) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    const double value = static_cast<double>(z >> 11) * 0x1p-52 - 1;
    if (view.dtype == DType::kF64) {
      static_cast<double*>(view.data)[i] = value;
    } else {
      static_cast<float*>(view.data)[i] = static_cast<float>(value);
    }
  }
}

// Seconds of one product, averaged over the layers.
Summary Measure(Ops& ops, const LinearKind& kind, DType wide, int64_t rows, int64_t repeat) {
  const PackedWeight& first = *kind.weights.front();
  const auto allocate = [&](int64_t cols) {
    return ops.Allocate(static_cast<size_t>(rows * cols) * SizeOf(wide));
  };
  const Buffer in = allocate(first.in()), out = allocate(first.out());
  const MatrixView from{in.data(), wide, rows, first.in(), first.in()};
  const MatrixView to{out.data(), wide, rows, first.out(), first.out()};
  FillRandom(from);
  std::vector<double> samples;
  for (int64_t i = 0; i <= 2 * repeat; ++i) {
    const double start = Now();
    for (const PackedWeight* weight : kind.weights) {
      ops.Linear(from, *weight, nullptr, false, to, nullptr);
    }
    const double seconds = (Now() - start) / static_cast<double>(kind.weights.size());
    if (i > 0) samples.push_back(seconds);
  }
  return Summarize(std::move(samples));
}

}  // namespace

absl::Status BenchLinear(BenchSession& session) {
  auto model = session.Load(AcpMode::kOff, 1, kPageTokens);
  if (!model.ok()) return model.status();
  const FoxWeights& weights = model->runner->weights();
  const DType wide = weights.wide;
  // The weights' form belongs to the backend that packed them; another one of its kind reads it.
  const auto dtype = model->runner->options().kv_dtype;
  CpuOps ops(
      {dtype, session.flags.model.plain_gemm, static_cast<int>(session.flags.model.threads)});
  session.report.Section("Linear layers (weights of all layers in turn)",
                         "layer        rows     out     in   median us (min .. max)   GFLOP/s   "
                         "GB/s  floor us  /floor");
  std::vector<int64_t> row_counts = session.flags.batch_sizes;
  row_counts.push_back(session.flags.model.chunk);
  for (const LinearKind& kind : KindsOf(weights)) {
    for (int64_t rows : row_counts) {
      const Summary seconds = Measure(ops, kind, wide, rows, session.flags.repeat);
      const PackedWeight& weight = *kind.weights.front();
      const double flops = 2.0 * static_cast<double>(weight.out() * weight.in() * rows);
      const auto bytes = static_cast<double>(weight.bytes());
      const double floor = std::max(bytes / session.peaks.read_bytes_per_second.median,
                                    flops / session.peaks.flops_per_second.median);
      const double median = seconds.median;
      session.report.Row(
          absl::StrFormat("%-11s %5d %7d %6d %10.1f (%.1f .. %.1f) %9.1f %6.1f %9.1f %7.2f",
                          kind.name, rows, weight.out(), weight.in(), median * 1e6,
                          seconds.min * 1e6, seconds.max * 1e6, flops / median / 1e9,
                          bytes / median / 1e9, floor * 1e6, median / floor),
          {{"bench", "linear"},
           {"layer", kind.name},
           {"rows", rows},
           {"out", weight.out()},
           {"in", weight.in()},
           {"seconds", ToJson(seconds)},
           {"flops", flops},
           {"weight_bytes", bytes},
           {"floor_seconds", floor},
           {"over_floor", median / floor}});
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
