// fox-bench attention: the CUDA backend's attention alone, on a cache of random projections with
// bimodal gates: prefill of whole prompts and of short chunks behind long contexts, and decode
// steps. Floors: multiplications at the measured peak of the matrix product, pages at the measured
// read bandwidth.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/interface/paged_kv_storage.h"
#include "kernels/paging/acp.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/gpu_machine.h"
#include "tests/bench/random_values.h"

namespace fox {
namespace {

constexpr int kSamples = 20;
constexpr int64_t kPrefillRows = 65536;
constexpr int64_t kFillRows = 16384;
constexpr int64_t kChunkRows[] = {512, 100};
constexpr int64_t kChunkFillRows = 8192;
// Decode calls cycle through layers whose pages together exceed this, so that the L2 cache does not
// help. Bytes.
constexpr double kWorkingSet = 1e9;
constexpr int kMaxLayers = 64;

struct AttentionCase {
  int heads = 24;
  int kv_heads = 24;
  int head_dim = 64;
  DType pages = DType::kBF16;
  int64_t tokens = 16384;  // of one sequence
  int batch = 4;
  int layers = 1;        // calls cycle through them
  int64_t max_rows = 0;  // of one step, all sequences together
  double log_tolerance = -10;
};

constexpr float kLogFOffset = 1, kGlobalGate = 9;

PagedKvShape ShapeOf(const AttentionCase& c) {
  PagedKvShape shape;
  shape.layers = c.layers;
  shape.q_heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.head_dim;
  shape.dtype = c.pages;
  shape.max_slots = c.batch;
  shape.max_pages = PagesFor(c.tokens);
  shape.num_pages = static_cast<int>(c.batch * shape.lists_per_slot() * shape.max_pages);
  return shape;
}

// A paged cache filled through the CUDA backend's own operations, so that attention alone can be
// timed on it. Keys and queries have unit RMS, three heads of four forget (gate logits N(1, 1)) and
// one remembers (N(9, 1)): the bimodal heads that FoX models show.
class AttentionSetup {
 public:
  AttentionSetup(CudaOps& ops, const AttentionCase& shape, AcpMode acp)
      : ops_(ops), case_(shape), acp_(acp) {
    const PagedKvShape pages = ShapeOf(case_);
    ops_.Reserve({.shape = pages, .max_rows = case_.max_rows, .max_seqs = case_.batch});
    storage_ = std::make_unique<PagedKvStorage>(pages, ops_);
    stride_ = (ProjectionColumns() + 7) / 8 * 8;
    std::vector<BFloat16> values(static_cast<size_t>(case_.max_rows * stride_));
    FillNormal(values.data(), static_cast<int64_t>(values.size()), 7, 0, 1);
    Send(values, projection_);
    out_ =
        ops_.Allocate(static_cast<size_t>(case_.max_rows * QueryColumns()) * SizeOf(DType::kBF16));
    MakeWeights();
    const auto seqs = static_cast<size_t>(case_.batch);
    std::vector<int32_t> slots(seqs);
    std::iota(slots.begin(), slots.end(), 0);
    Send(slots, slot_);
    Send(std::vector<double>(seqs, case_.log_tolerance), tolerance_);
    Send(std::vector<int64_t>(seqs, 0), total_);
    Send(std::vector<int64_t>(seqs, 0), skipped_);
  }

  // Appends `rows` tokens to every sequence, in steps of at most max_rows rows; afterwards the
  // last step is the current one. With `evict`, each step ends with Ops::Evict.
  void Append(int64_t rows, bool evict) {
    EvictParams params;
    params.acp = acp_;
    params.self_logit_bound = params.max_logit_bound = logit_.as<double>();
    params.bounds = bounds_.as<QueryBound>();
    params.diagonal = IsDiagonal(bound_);
    while (rows > 0) {
      const int64_t some = std::min(rows, case_.max_rows / case_.batch);
      BeginStep(some);
      rows -= some;
      if (evict) ops_.Evict(batch_, params, storage_->view(), nullptr);
    }
  }

  // The attention of the current step, on layer `call` modulo the layers.
  void Attend(int call) {
    const AttentionParams params = Params(call % case_.layers);
    // The state of a real step, where Append runs just before: attention may read early all memory
    // but the queries and the sums of log gates, which Append may still be writing.
    const bool decodes = batch_.num_rows == batch_.num_seqs;
    ops_.state().unfinished =
        decodes ? UnfinishedWrites::None().With(params.q.data).With(storage_->view().cum_log_f)
                : UnfinishedWrites();
    ops_.Attention(batch_, params, storage_->view(), nullptr);
  }

  // Share of the page blocks in the causal range that one Attend visits.
  double VisitedShare() {
    const auto seqs = static_cast<size_t>(case_.batch);
    const auto sum = [&](const Buffer& counts) {
      std::vector<int64_t> values(seqs);
      ops_.CopyToHost(counts.data(), seqs * sizeof(int64_t), values.data(), nullptr);
      return static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0}));
    };
    Send(std::vector<int64_t>(seqs, 0), total_);
    Send(std::vector<int64_t>(seqs, 0), skipped_);
    Attend(0);
    return 1 - sum(skipped_) / sum(total_);
  }

  // Bytes that one Attend of the current step must read, with one row for each sequence.
  double LivePageBytes() const {
    const PagedKv& kv = storage_->view();
    std::vector<int32_t> first(static_cast<size_t>(case_.batch * kv.shape.lists_per_slot()));
    ops_.CopyToHost(kv.first_live, first.size() * sizeof(int32_t), first.data(), nullptr);
    int64_t pages = 0;
    for (int32_t page : first) pages += PagesFor(length_) - page;
    return static_cast<double>(pages) * static_cast<double>(kv.shape.page_bytes()) / case_.layers;
  }

 private:
  int64_t QueryColumns() const { return static_cast<int64_t>(case_.heads) * case_.head_dim; }
  int64_t KeyColumns() const { return static_cast<int64_t>(case_.kv_heads) * case_.head_dim; }
  int64_t ProjectionColumns() const { return QueryColumns() + 2 * KeyColumns() + case_.heads; }

  template <typename T>
  void Send(const std::vector<T>& values, Buffer& buffer) {
    const size_t bytes = values.size() * sizeof(T);
    if (buffer.bytes() < bytes) buffer = ops_.Allocate(bytes);
    ops_.CopyToDevice(values.data(), bytes, buffer.data(), nullptr);
  }

  // Norm weights are one, so B and U are sqrt(d) but for rounding.
  void MakeWeights() {
    const auto heads = static_cast<size_t>(case_.heads);
    const size_t columns = heads * static_cast<size_t>(case_.head_dim);
    Send(std::vector<float>(columns, 1), norm_);
    Send(std::vector<float>(columns, 1), diagonal_);
    std::vector<float> gates(heads, kLogFOffset);
    for (size_t head = 3; head < heads; head += 4) gates[head] = kGlobalGate;
    Send(gates, fgate_bias_);
    self_logit_bound_ = kProductInflation * std::sqrt(case_.head_dim);
    Send(std::vector<double>(heads * static_cast<size_t>(case_.layers), self_logit_bound_), logit_);
    bound_.diagonal = diagonal_.as<float>();
    bound_.scale = kKeyNormInflation;
    bound_.self_logit_bound = bound_.max_logit_bound = logit_.as<double>();
    Send(std::vector<QueryBound>(static_cast<size_t>(case_.layers), bound_), bounds_);
  }

  void BeginStep(int64_t rows_each) {
    const auto seqs = static_cast<size_t>(case_.batch);
    std::vector<int64_t> row_begin(seqs + 1);
    for (size_t i = 0; i <= seqs; ++i) row_begin[i] = static_cast<int64_t>(i) * rows_each;
    Send(row_begin, row_begin_);
    Send(std::vector<int64_t>(seqs, length_), position_);
    rows_ = row_begin.back();
    batch_.num_seqs = case_.batch;
    batch_.num_rows = rows_;
    batch_.num_decodes = rows_ == case_.batch ? case_.batch : 0;
    batch_.slot = slot_.as<int32_t>();
    batch_.row_begin = row_begin_.as<int64_t>();
    batch_.position = position_.as<int64_t>();
    batch_.log_tolerance = tolerance_.as<double>();
    ops_.BeginStep(batch_, storage_->view(), nullptr);
    AppendParams append;
    append.projection = {projection_.data(), DType::kBF16, rows_, ProjectionColumns(), stride_};
    append.k_column = QueryColumns();
    append.v_column = append.k_column + KeyColumns();
    append.fgate_column = append.v_column + KeyColumns();
    append.fgate_bias = fgate_bias_.data();
    append.min_log_gate = MinLogGate(self_logit_bound_);
    append.q_norm = append.k_norm = norm_.data();
    append.bound = bound_;
    append.acp = acp_;
    for (append.layer = 0; append.layer < case_.layers; ++append.layer) {
      ops_.Append(batch_, append, storage_->view(), nullptr);
    }
    length_ += rows_each;
  }

  AttentionParams Params(int layer) const {
    AttentionParams params;
    params.layer = layer;
    params.q = {projection_.data(), DType::kBF16, rows_, QueryColumns(), stride_};
    params.out = {out_.data(), DType::kBF16, rows_, QueryColumns(), QueryColumns()};
    params.acp = acp_;
    params.bound = bound_;
    params.blocks_total = total_.as<int64_t>();
    params.blocks_pruned = skipped_.as<int64_t>();
    return params;
  }

  CudaOps& ops_;
  AttentionCase case_;
  AcpMode acp_;
  std::unique_ptr<PagedKvStorage> storage_;
  Buffer projection_, out_, norm_, fgate_bias_, diagonal_, logit_, bounds_;
  Buffer slot_, row_begin_, position_, tolerance_, total_, skipped_;
  int64_t stride_ = 0, length_ = 0, rows_ = 0;
  double self_logit_bound_ = 0;
  QueryBound bound_;
  BatchView batch_;
};

// Times Attend and adds a row; `floor`: seconds, `more`: members of the row.
absl::Status Measure(BenchSession& session, CudaOps& ops, AttentionSetup& setup,
                     const AttentionCase& shape, AcpMode mode, int calls, double floor,
                     const char* kind, const nlohmann::ordered_json& more) {
  const auto seconds = MeasureOnGpu(ops, calls, kSamples, [&](int call) { setup.Attend(call); });
  if (!seconds.ok()) return seconds.status();
  const double median = seconds->median;
  nlohmann::ordered_json row = {{"bench", "attention"},       {"kind", kind},
                                {"heads", shape.heads},       {"kv_heads", shape.kv_heads},
                                {"head_dim", shape.head_dim}, {"pages", NameOf(shape.pages)},
                                {"acp", NameOf(mode)},        {"seconds", ToJson(*seconds)},
                                {"floor_seconds", floor},     {"over_floor", median / floor}};
  row.update(more);
  if (row.contains("flops")) row["flops_per_second"] = row["flops"].get<double>() / median;
  if (row.contains("page_bytes_read")) row["fraction_of_read_bandwidth"] = floor / median;
  session.report.Row(
      absl::StrFormat("%-7s %2d/%-2d x %3d %-4s %6d %3d  %-9s %9.1f (%.1f .. %.1f) %9.1f %7.2f %s",
                      kind, shape.heads, shape.kv_heads, shape.head_dim, NameOf(shape.pages),
                      shape.tokens, shape.batch, NameOf(mode), median * 1e6, seconds->min * 1e6,
                      seconds->max * 1e6, floor * 1e6, median / floor, more.dump()),
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

// Measures two chunks of one sequence, one behind the other. The floor counts the blocks that the
// chunk's rows visit, after the eviction of earlier steps.
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
  const double layer_bytes = 2.0 * static_cast<double>(SizeOf(shape.pages)) * shape.head_dim *
                             shape.kv_heads * shape.batch * static_cast<double>(shape.tokens);
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
  session.report.Section("Attention alone: random projections, bimodal gates",
                         "kind    heads   x   d pages tokens   B  acp        median us (min .. "
                         "max)     floor  /floor");
  struct Case {
    absl::Status (*bench)(BenchSession&, CudaOps&, AttentionCase, AcpMode);
    AttentionCase shape;
  };
  // Decode steps also of models whose query heads share kv heads: SmolLM2-135M, and LLaMA 3 8B,
  // Mistral 7B and Qwen3-8B, which have equal heads.
  constexpr DType k8Bits = DType::kE4M3;
  constexpr Case kCases[] = {
      {BenchPrefillCase, {.tokens = 16384, .batch = 4}},
      {BenchPrefillCase, {.heads = 16, .kv_heads = 16, .head_dim = 128, .tokens = 16384}},
      {BenchPrefillCase, {.tokens = 65536, .batch = 1}},
      {BenchChunks, {.tokens = 65536, .batch = 1}},
      {BenchChunks, {.heads = 16, .kv_heads = 16, .head_dim = 128, .tokens = 65536, .batch = 1}},
      {BenchDecodeCase, {.tokens = 4096, .batch = 1}},
      {BenchDecodeCase, {.tokens = 16384, .batch = 1}},
      {BenchDecodeCase, {.tokens = 4096, .batch = 32}},
      {BenchDecodeCase, {.tokens = 16384, .batch = 32}},
      {BenchDecodeCase, {.heads = 9, .kv_heads = 3, .tokens = 8192, .batch = 32}},
      {BenchDecodeCase, {.heads = 9, .kv_heads = 3, .pages = k8Bits, .tokens = 8192, .batch = 32}},
      {BenchDecodeCase, {.heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 8192, .batch = 1}},
      {BenchDecodeCase, {.heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 8192, .batch = 32}},
      {BenchDecodeCase,
       {.heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .pages = k8Bits,
        .tokens = 8192,
        .batch = 32}}};
  for (const auto& [bench, shape] : kCases) {
    for (AcpMode mode : session.flags.modes) {
      AttentionCase judged = shape;
      judged.log_tolerance = session.ToleranceOf(mode);
      if (absl::Status s = bench(session, ops, judged, mode); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace fox
