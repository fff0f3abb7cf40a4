// fox-bench linear: each kind of matrix product of the model, by rows, against the larger of two
// floors: its weight's bytes at the measured bandwidth, its multiplications at the measured peak.
// The product of gate and up includes its gate.
#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "models/fox_model.h"
#include "tests/bench/bench_session.h"

namespace fox {
namespace {

struct LinearKind {
  const char* name;
  std::vector<const PackedWeight*> weights;  // of all layers: run in turn, as the model does
  bool halves = false;                       // gate and up
};

std::vector<LinearKind> KindsOf(const FoxWeights& weights) {
  std::vector<LinearKind> kinds = {
      {"projection", {}}, {"o", {}}, {"gate_up", {}, true}, {"down", {}}, {"lm_head", {}}};
  for (const LayerWeights& layer : weights.layers) {
    kinds[0].weights.push_back(layer.projection.get());
    kinds[1].weights.push_back(layer.o.get());
    kinds[2].weights.push_back(layer.gate_up.get());
    kinds[3].weights.push_back(layer.down.get());
  }
  kinds[4].weights.push_back(weights.lm_head.get());
  return kinds;
}

// Seconds of one product, averaged over the layers.
absl::StatusOr<Summary> Measure(const BenchSession& session, Ops& ops, const LinearKind& kind,
                                DType wide, int64_t rows, bool decodes) {
  const PackedWeight& first = *kind.weights.front();
  const DType dtype = ops.ActivationDType(wide);
  const Buffer in = RandomRows(ops, dtype, rows * first.in(), 1);
  // Rows start at 16 bytes on a GPU; oneDNN wants no gaps.
  const int64_t stride = session.on_gpu ? (first.out() + 7) / 8 * 8 : first.out();
  const Buffer out = ops.Allocate(static_cast<size_t>(rows * stride) * SizeOf(dtype));
  const MatrixView from{in.data(), dtype, rows, first.in(), first.in()};
  std::optional<Activation> gate;
  if (kind.halves) gate = Activation::kSilu;
  const MatrixView to{out.data(), dtype, rows, first.out() / (gate ? 2 : 1), stride};
  const auto multiply = [&](int i) {
    const PackedWeight& weight = *kind.weights[static_cast<size_t>(i)];
    ops.Linear(
        {.in = from, .weight = weight, .gate = gate, .decode_rows = decodes ? rows : 0, .out = to},
        nullptr);
  };
  const auto count = static_cast<int>(kind.weights.size());
  const int samples = static_cast<int>(2 * session.flags.repeat);
  return MeasureCalls(ops, count, samples, multiply);
}

void Report(BenchSession& session, const LinearKind& kind, int64_t rows, const Summary& seconds) {
  const PackedWeight& weight = *kind.weights.front();
  const double flops = 2.0 * static_cast<double>(weight.out() * weight.in() * rows);
  const auto bytes = static_cast<double>(weight.bytes());
  const double floor = std::max(bytes / session.peaks.read_bytes_per_second.median,
                                flops / session.peaks.flops_per_second.median);
  const double median = seconds.median;
  session.report.Row(
      absl::StrFormat("%-11s %5d %7d %6d %10.1f (%.1f .. %.1f) %9.1f %6.1f %9.1f %7.2f", kind.name,
                      rows, weight.out(), weight.in(), median * 1e6, seconds.min * 1e6,
                      seconds.max * 1e6, flops / median / 1e9, bytes / median / 1e9, floor * 1e6,
                      median / floor),
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

}  // namespace

absl::Status BenchLinear(BenchSession& session) {
  auto model = session.Load(AcpMode::kOff, 1, kPageTokens);
  if (!model.ok()) return model.status();
  const FoxWeights& weights = model->runner->weights();
  session.report.Section("Linear layers (weights of all layers in turn)",
                         "layer        rows     out     in   median us (min .. max)   GFLOP/s   "
                         "GB/s  floor us  /floor");
  // Of decode steps, and of a prompt's chunk.
  std::vector<int64_t> row_counts = session.flags.batch_sizes;
  row_counts.push_back(std::max<int64_t>(session.flags.model.chunk, 2));
  for (const LinearKind& kind : KindsOf(weights)) {
    for (size_t i = 0; i < row_counts.size(); ++i) {
      const bool decodes = i + 1 < row_counts.size();
      const auto seconds = Measure(session, model->runner->ops(), kind, weights.residual_dtype,
                                   row_counts[i], decodes);
      if (!seconds.ok()) return seconds.status();
      Report(session, kind, row_counts[i], *seconds);
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
