// fox-bench attention: the CUDA backend's attention alone, on a cache of random projections with
// bimodal gates: prefill of whole prompts and of short chunks behind long contexts, and decode
// steps. Floors: multiplications at the measured peak of the matrix product, pages at the measured
// read bandwidth.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "tests/bench/attention_setup.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/gpu_machine.h"

namespace fox {
namespace {

constexpr int kSamples = 20;
constexpr int64_t kPrefillRows = 65536;
constexpr int64_t kFillRows = 16384;
constexpr int64_t kChunkRows[] = {512, 100};
constexpr int64_t kChunkFillRows = 8192;
// Decode calls go round so many layers that they read at least that much in between.
constexpr double kWorkingSet = 1e9;
constexpr int kMaxLayers = 64;

// Times Attend and adds a row; `floor`: seconds, `more`: members of the row.
absl::Status Measure(BenchSession& session, CudaOps& ops, AttentionSetup& setup,
                     const AttentionCase& shape, AcpMode mode, int calls, double floor,
                     const char* kind, const nlohmann::ordered_json& more) {
  const auto seconds = MeasureOnGpu(ops, calls, kSamples, [&](int call) { setup.Attend(call); });
  if (!seconds.ok()) return seconds.status();
  const double median = seconds->median;
  nlohmann::ordered_json row = {{"bench", "attention"},   {"kind", kind},
                                {"heads", shape.heads},   {"head_dim", shape.head_dim},
                                {"acp", NameOf(mode)},    {"seconds", ToJson(*seconds)},
                                {"floor_seconds", floor}, {"over_floor", median / floor}};
  row.update(more);
  if (row.contains("flops")) row["flops_per_second"] = row["flops"].get<double>() / median;
  if (row.contains("page_bytes_read")) row["fraction_of_read_bandwidth"] = floor / median;
  session.report.Row(
      absl::StrFormat("%-7s %3d x %3d %6d %3d  %-9s %9.1f (%.1f .. %.1f) %9.1f %7.2f %s", kind,
                      shape.heads, shape.head_dim, shape.tokens, shape.batch, NameOf(mode),
                      median * 1e6, seconds->min * 1e6, seconds->max * 1e6, floor * 1e6,
                      median / floor, more.dump()),
      std::move(row));
  return absl::OkStatus();
}

absl::Status BenchPrefillCase(BenchSession& session, CudaOps& ops, AttentionCase shape,
                              AcpMode mode) {
  shape.max_rows = kPrefillRows;
  AttentionSetup setup(ops, shape, mode);
  setup.Append(shape.tokens, false);
  const double visited = setup.VisitedShare();
  const auto tokens = static_cast<double>(shape.tokens);
  // q.k and the weighted sum of v over the causal half.
  const double flops = 4.0 * shape.head_dim * tokens * tokens / 2 * shape.heads * shape.batch;
  return Measure(session, ops, setup, shape, mode, 4,
                 visited * flops / session.peaks.flops_per_second.median, "prefill",
                 {{"tokens", shape.tokens},
                  {"batch_size", shape.batch},
                  {"flops", flops},
                  {"visited_share", visited}});
}

// One sequence; its second chunk follows the first. What a chunk's rows visit is behind the
// eviction of the steps before; of it the floor is made.
absl::Status BenchChunks(BenchSession& session, CudaOps& ops, AttentionCase shape, AcpMode mode) {
  const int64_t context = shape.tokens;
  shape.batch = 1;
  shape.tokens = context + kChunkRows[0] + kChunkRows[1];
  shape.layers = 2;
  shape.max_rows = kChunkFillRows;
  AttentionSetup setup(ops, shape, mode);
  setup.Append(context, true);
  for (const int64_t rows : kChunkRows) {
    setup.Append(rows, false);
    const double visited = setup.VisitedShare();
    const double keys = static_cast<double>(context) + static_cast<double>(rows) / 2;
    const double flops = 4.0 * shape.head_dim * static_cast<double>(rows) * keys * shape.heads;
    absl::Status s = Measure(session, ops, setup, shape, mode, 16,
                             visited * flops / session.peaks.flops_per_second.median, "chunk",
                             {{"context", context}, {"rows", rows}, {"visited_share", visited}});
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status BenchDecodeCase(BenchSession& session, CudaOps& ops, AttentionCase shape,
                             AcpMode mode) {
  const double layer_bytes =
      4.0 * shape.head_dim * shape.heads * shape.batch * static_cast<double>(shape.tokens);
  shape.layers = std::clamp(static_cast<int>(kWorkingSet / layer_bytes) + 1, 1, kMaxLayers);
  shape.max_rows = std::max<int64_t>(kFillRows, shape.batch);
  AttentionSetup setup(ops, shape, mode);
  setup.Append(shape.tokens - 1, true);
  setup.Append(1, false);
  const double bytes = setup.LivePageBytes();
  return Measure(session, ops, setup, shape, mode, std::max(shape.layers, 16),
                 bytes / session.peaks.read_bytes_per_second.median, "decode",
                 {{"tokens", shape.tokens},
                  {"batch_size", shape.batch},
                  {"layers", shape.layers},
                  {"page_bytes_read", bytes}});
}

}  // namespace

absl::Status BenchAttention(BenchSession& session) {
  if (!session.on_gpu)
    return absl::InvalidArgumentError("attention is of the CUDA backend: --device cuda");
  const auto backend = MakeBackend(session.flags.model.Config(kPageTokens));
  if (!backend.ok()) return backend.status();
  CudaOps& ops = static_cast<CudaOps&>(*backend->ops);
  session.report.Section(
      "Attention alone: random projections, bimodal gates",
      "kind    heads x d tokens   B  acp        median us (min .. max)     floor  /floor");
  using Bench = absl::Status (*)(BenchSession&, CudaOps&, AttentionCase, AcpMode);
  constexpr std::tuple<Bench, int, int, int, int> kCases[] = {
      {BenchPrefillCase, 24, 64, 16384, 4}, {BenchPrefillCase, 16, 128, 16384, 4},
      {BenchPrefillCase, 24, 64, 65536, 1}, {BenchChunks, 24, 64, 65536, 1},
      {BenchChunks, 16, 128, 65536, 1},     {BenchDecodeCase, 24, 64, 4096, 1},
      {BenchDecodeCase, 24, 64, 16384, 1},  {BenchDecodeCase, 24, 64, 4096, 32},
      {BenchDecodeCase, 24, 64, 16384, 32}};
  for (const auto& [bench, heads, head_dim, tokens, batch] : kCases) {
    for (AcpMode mode : session.flags.modes) {
      AttentionCase shape;
      shape.heads = heads;
      shape.head_dim = head_dim;
      shape.tokens = tokens;
      shape.batch = batch;
      shape.log_tolerance = session.ToleranceOf(mode);
      if (absl::Status s = bench(session, ops, shape, mode); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
