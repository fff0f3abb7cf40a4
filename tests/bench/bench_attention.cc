// fox-bench attention: the CUDA backend's attention alone, on a cache of random projections with
// bimodal gates: prefill of whole prompts (also the search for the tiles' boundaries by itself) and
// of short chunks behind long contexts, and decode steps. Floors: multiplications at the measured
// peak of the matrix product, pages at the measured read bandwidth.
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

double ToleranceOf(const BenchSession& session, AcpMode mode) {
  EvalFlags flags = session.flags.model;
  flags.acp = NameOf(mode);
  return flags.Tolerance(ModelConfig{});
}

absl::Status BenchPrefillCase(BenchSession& session, CudaOps& ops, AttentionCase shape,
                              AcpMode mode) {
  shape.log_tolerance = ToleranceOf(session, mode);
  shape.max_rows = kPrefillRows;
  AttentionSetup setup(ops, shape, mode);
  setup.Append(shape.tokens, false);
  const double visited = setup.VisitedShare();
  const auto seconds = MeasureOnGpu(ops, 4, kSamples, [&](int call) { setup.Attend(call); });
  if (!seconds.ok()) return seconds.status();
  const auto search = MeasureOnGpu(ops, 16, kSamples, [&](int) { setup.SearchBoundaries(); });
  if (!search.ok()) return search.status();
  const auto tokens = static_cast<double>(shape.tokens);
  // q.k and the weighted sum of v over the causal half.
  const double flops = 4.0 * shape.head_dim * tokens * tokens / 2 * shape.heads * shape.batch;
  const double median = seconds->median;
  const double floor = visited * flops / session.peaks.flops_per_second.median;
  const double share = search->median / median;
  session.report.Row(
      absl::StrFormat("prefill %3d x %3d %6d %3d  %-9s %8.3f (%.3f .. %.3f) %8.1f %8.1f%% %8.1f "
                      "%8.3f %6.2f  search %.1f us (%.2f%%)",
                      shape.heads, shape.head_dim, shape.tokens, shape.batch, NameOf(mode),
                      median * 1e3, seconds->min * 1e3, seconds->max * 1e3, flops / median / 1e12,
                      100 * visited, visited * flops / median / 1e12, floor * 1e3, median / floor,
                      search->median * 1e6, 100 * share),
      {{"bench", "attention"},
       {"kind", "prefill"},
       {"heads", shape.heads},
       {"head_dim", shape.head_dim},
       {"tokens", shape.tokens},
       {"batch_size", shape.batch},
       {"acp", NameOf(mode)},
       {"seconds", ToJson(*seconds)},
       {"flops", flops},
       {"flops_per_second", flops / median},
       {"visited_share", visited},
       {"visited_flops_per_second", visited * flops / median},
       {"search_seconds", ToJson(*search)},
       {"search_share", share},
       {"floor_seconds", floor},
       {"over_floor", median / floor}});
  return absl::OkStatus();
}

// What a chunk's rows visit is behind the eviction of the steps before; of it the floor is made.
absl::Status BenchChunkCase(BenchSession& session, CudaOps& ops, AttentionSetup& setup,
                            const AttentionCase& shape, AcpMode mode, int64_t context,
                            int64_t rows) {
  setup.Append(rows, false);
  const double visited = setup.VisitedShare();
  const auto seconds = MeasureOnGpu(ops, 16, kSamples, [&](int call) { setup.Attend(call); });
  if (!seconds.ok()) return seconds.status();
  const double keys = static_cast<double>(context) + static_cast<double>(rows) / 2;
  const double flops = 4.0 * shape.head_dim * static_cast<double>(rows) * keys * shape.heads;
  const double floor = visited * flops / session.peaks.flops_per_second.median;
  const double median = seconds->median;
  session.report.Row(
      absl::StrFormat("chunk   %3d x %3d %6d %3d  %-9s %8.1f (%.1f .. %.1f) us %8.1f%% %8.1f "
                      "TFLOP/s of them %8.1f us %6.2f",
                      shape.heads, shape.head_dim, context, rows, NameOf(mode), median * 1e6,
                      seconds->min * 1e6, seconds->max * 1e6, 100 * visited,
                      visited * flops / median / 1e12, floor * 1e6, median / floor),
      {{"bench", "attention"},
       {"kind", "chunk"},
       {"heads", shape.heads},
       {"head_dim", shape.head_dim},
       {"context", context},
       {"rows", rows},
       {"acp", NameOf(mode)},
       {"seconds", ToJson(*seconds)},
       {"visited_share", visited},
       {"visited_flops_per_second", visited * flops / median},
       {"floor_seconds", floor},
       {"over_floor", median / floor}});
  return absl::OkStatus();
}

// One sequence; its second chunk follows the first.
absl::Status BenchChunks(BenchSession& session, CudaOps& ops, AcpMode mode, int heads, int head_dim,
                         int64_t context) {
  AttentionCase shape;
  shape.heads = heads;
  shape.head_dim = head_dim;
  shape.batch = 1;
  shape.tokens = context + kChunkRows[0] + kChunkRows[1];
  shape.layers = 2;
  shape.max_rows = kChunkFillRows;
  shape.log_tolerance = ToleranceOf(session, mode);
  AttentionSetup setup(ops, shape, mode);
  setup.Append(context, true);
  for (const int64_t rows : kChunkRows) {
    if (absl::Status s = BenchChunkCase(session, ops, setup, shape, mode, context, rows); !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status BenchDecodeCase(BenchSession& session, CudaOps& ops, AttentionCase shape,
                             AcpMode mode) {
  const double layer_bytes =
      4.0 * shape.head_dim * shape.heads * shape.batch * static_cast<double>(shape.tokens);
  shape.log_tolerance = ToleranceOf(session, mode);
  shape.layers = std::clamp(static_cast<int>(kWorkingSet / layer_bytes) + 1, 1, kMaxLayers);
  shape.max_rows = std::max<int64_t>(kFillRows, shape.batch);
  AttentionSetup setup(ops, shape, mode);
  setup.Append(shape.tokens - 1, true);
  setup.Append(1, false);
  const int calls = std::max(shape.layers, 16);
  const auto seconds = MeasureOnGpu(ops, calls, kSamples, [&](int call) { setup.Attend(call); });
  if (!seconds.ok()) return seconds.status();
  const double bytes = setup.LivePageBytes();
  const double floor = bytes / session.peaks.read_bytes_per_second.median;
  const double median = seconds->median;
  session.report.Row(
      absl::StrFormat("decode  %3d x %3d %6d %3d  %-9s %8.1f (%.1f .. %.1f) us %8.1f MB %8.1f us "
                      "%6.1f%% of memory",
                      shape.heads, shape.head_dim, shape.tokens, shape.batch, NameOf(mode),
                      median * 1e6, seconds->min * 1e6, seconds->max * 1e6, bytes / 1e6,
                      floor * 1e6, 100 * floor / median),
      {{"bench", "attention"},
       {"kind", "decode"},
       {"heads", shape.heads},
       {"head_dim", shape.head_dim},
       {"tokens", shape.tokens},
       {"batch_size", shape.batch},
       {"layers", shape.layers},
       {"acp", NameOf(mode)},
       {"seconds", ToJson(*seconds)},
       {"page_bytes_read", bytes},
       {"floor_seconds", floor},
       {"over_floor", median / floor},
       {"fraction_of_read_bandwidth", floor / median}});
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchAttention(BenchSession& session) {
  if (!session.on_gpu)
    return absl::InvalidArgumentError("attention is of the CUDA backend: --device cuda");
  const auto backend = MakeBackend(session.flags.model.Config(kPageTokens));
  if (!backend.ok()) return backend.status();
  CudaOps& ops = static_cast<CudaOps&>(*backend->ops);
  session.report.Section("Attention alone: random projections, bimodal gates",
                         "kind    heads x d tokens   B  acp         median (min .. max)  TFLOP/s  "
                         "visited  visited TFLOP/s  floor  /floor");
  for (const auto& [heads, head_dim, tokens] :
       {std::tuple{24, 64, 16384}, {16, 128, 16384}, {24, 64, 65536}}) {
    for (AcpMode mode : session.flags.modes) {
      AttentionCase shape;
      shape.heads = heads;
      shape.head_dim = head_dim;
      shape.tokens = tokens;
      shape.batch = static_cast<int>(kPrefillRows / tokens);
      if (absl::Status s = BenchPrefillCase(session, ops, shape, mode); !s.ok()) return s;
    }
  }
  for (const auto& [heads, head_dim, context] :
       {std::tuple{24, 64, 65536}, {24, 64, 100000}, {16, 128, 65536}}) {
    for (AcpMode mode : session.flags.modes) {
      absl::Status s = BenchChunks(session, ops, mode, heads, head_dim, context);
      if (!s.ok()) return s;
    }
  }
  for (const auto& [batch, tokens] : {std::pair{1, 4096}, {1, 16384}, {32, 4096}, {32, 16384}}) {
    for (AcpMode mode : session.flags.modes) {
      AttentionCase shape;
      shape.tokens = tokens;
      shape.batch = batch;
      if (absl::Status s = BenchDecodeCase(session, ops, shape, mode); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
