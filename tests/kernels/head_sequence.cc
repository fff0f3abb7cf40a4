// Random heads, run by a backend or naively. See head_sequence.h.
#include "tests/kernels/head_sequence.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <type_traits>

#include "kernels/core/e4m3.h"
#include "kernels/paging/acp.h"

namespace fox::testing {
namespace {

template <typename T>
Buffer UploadAs(Ops& ops, const std::vector<double>& values) {
  std::vector<T> narrow(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      narrow[i] = BFloat16(static_cast<float>(values[i]));
    } else {
      narrow[i] = static_cast<T>(values[i]);
    }
  }
  Buffer buffer = ops.Allocate(narrow.size() * sizeof(T));
  ops.CopyToDevice(narrow.data(), narrow.size() * sizeof(T), buffer.data(), nullptr);
  return buffer;
}

Buffer Upload(Ops& ops, const std::vector<double>& values, DType dtype) {
  if (values.empty()) return {};
  if (dtype == DType::kF64) return UploadAs<double>(ops, values);
  return dtype == DType::kF32 ? UploadAs<float>(ops, values) : UploadAs<BFloat16>(ops, values);
}

template <typename T>
Buffer UploadRaw(Ops& ops, const std::vector<T>& values) {
  if (values.empty()) return {};
  Buffer buffer = ops.Allocate(values.size() * sizeof(T));
  ops.CopyToDevice(values.data(), values.size() * sizeof(T), buffer.data(), nullptr);
  return buffer;
}

template <typename T>
void DownloadAs(Ops& ops, const Buffer& buffer, std::vector<double>& out) {
  std::vector<T> narrow(out.size());
  ops.CopyToHost(buffer.data(), narrow.size() * sizeof(T), narrow.data(), nullptr);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<double>(
        static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(narrow[i]));
  }
}

void Download(Ops& ops, const Buffer& buffer, DType dtype, std::vector<double>& out) {
  if (dtype == DType::kF64) return DownloadAs<double>(ops, buffer, out);
  return dtype == DType::kF32 ? DownloadAs<float>(ops, buffer, out)
                              : DownloadAs<BFloat16>(ops, buffer, out);
}

// Rows of `from` values, made `to` long; zeros behind them.
std::vector<double> Spread(const std::vector<double>& values, int64_t from, int64_t to) {
  const auto rows = static_cast<int64_t>(values.size()) / from;
  std::vector<double> spread(static_cast<size_t>(rows * to));
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(values.begin() + r * from, std::min(from, to), spread.begin() + r * to);
  }
  return spread;
}

}  // namespace

HeadInputs RandomInputs(const HeadShape& shape, int64_t length, uint64_t seed,
                        const std::vector<double>& gate_means) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  HeadInputs in;
  in.shape = shape;
  in.length = length;
  in.projection.resize(static_cast<size_t>(length * in.columns()));
  for (double& x : in.projection) x = normal(rng);
  for (int64_t row = 0; row < length; ++row) {
    for (int h = 0; h < shape.q_heads; ++h) {
      in.at(row, in.gate_column() + h) += gate_means[static_cast<size_t>(h) % gate_means.size()];
    }
  }
  if (shape.qk_norm) {
    for (int64_t i = 0; i < shape.hidden(); ++i) in.q_norm.push_back(1 + 0.15 * normal(rng));
    for (int64_t i = 0; i < shape.kv(); ++i) in.k_norm.push_back(1 + 0.15 * normal(rng));
  }
  for (int64_t i = 0; shape.output_norm && i < shape.hidden(); ++i) {
    in.output_norm.push_back(1 + 0.15 * normal(rng));
  }
  for (int m = 0; shape.rope && m < shape.head_dim / 2; ++m) {
    in.rope_frequency.push_back(std::pow(10000.0, -2.0 * m / shape.head_dim));
  }
  const auto cap = [&] {
    return static_cast<float>(std::sqrt(shape.head_dim) * std::exp(0.15 * normal(rng)));
  };
  for (int h = 0; shape.norm_caps && h < shape.q_heads; ++h) in.q_cap.push_back(cap());
  for (int h = 0; shape.norm_caps && h < shape.kv_heads; ++h) in.k_cap.push_back(cap());
  for (int h = 0; shape.sink && h < shape.q_heads; ++h) {
    in.sink.push_back(static_cast<float>(2 * normal(rng)));
  }
  SetBounds(in);
  return in;
}

void RoundToBFloat16(HeadInputs& in) {
  for (double& x : in.projection) {
    x = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(x))));
  }
}

void RoundToE4M3(double* row, int64_t count) {
  const std::vector<float> values(row, row + count);
  std::vector<uint8_t> codes(values.size());
  const int exponent = EncodeE4M3(values.data(), count, codes.data());
  for (const uint8_t code : codes) {
    *row++ = static_cast<double>(static_cast<float>(E4M3Value(code, exponent)));
  }
}

void RoundToE4M3(HeadInputs& in) {
  const int64_t d = in.shape.head_dim, parts = 2 * in.shape.kv_heads;
  for (int64_t at = 0; at < in.length * parts; ++at) {
    RoundToE4M3(&in.at(at / parts, in.shape.hidden() + at % parts * d), d);
  }
}

void SetBounds(HeadInputs& in, DType pages) {
  in.pages = pages;
  const HeadShape& shape = in.shape;
  const int d = shape.head_dim, group = shape.q_heads / shape.kv_heads;
  const bool bounded = shape.norm_caps || !in.q_norm.empty();
  // A cap bounds a norm as weights of QK-norm do that are all cap / sqrt(d).
  const auto gain = [&](const std::vector<double>& norm, const std::vector<float>& cap, int head,
                        int m) {
    return shape.attention_factor * std::abs(shape.norm_caps
                                                 ? cap[static_cast<size_t>(head)] / std::sqrt(d)
                                                 : norm[static_cast<size_t>(head * d + m)]);
  };
  in.bound_diagonal.clear();
  in.self_logit_bound.assign(static_cast<size_t>(shape.q_heads),
                             std::numeric_limits<double>::infinity());
  in.max_logit_bound = in.self_logit_bound;
  for (int h = 0; h < shape.q_heads; ++h) {
    double product = 0, q_max = 0, k_max = 0;
    for (int m = 0; bounded && m < d; ++m) {
      const double gq = gain(in.q_norm, in.q_cap, h, m),
                   gk = gain(in.k_norm, in.k_cap, h / group, m);
      product = std::max(product, gq * gk);
      q_max = std::max(q_max, gq);
      k_max = std::max(k_max, gk);
      const double pair = shape.rope ? gain(in.q_norm, in.q_cap, h, (m + d / 2) % d) : 0;
      in.bound_diagonal.push_back(static_cast<float>(std::max(gq, pair)));
    }
    const auto at = static_cast<size_t>(h);
    if (bounded) {
      in.self_logit_bound[at] = SelfLogitBound(d, product, q_max, k_max, shape.rope, pages);
      in.max_logit_bound[at] = MaxLogitBound(d, q_max, k_max, pages);
    }
    if (shape.sink) {
      in.self_logit_bound[at] =
          std::min(in.self_logit_bound[at], -static_cast<double>(in.sink[at]));
    }
  }
}

PagedKvShape ShapeFor(const HeadShape& heads, int64_t length, DType dtype, int slots) {
  PagedKvShape shape;
  shape.layers = 1;
  shape.q_heads = heads.q_heads;
  shape.kv_heads = heads.kv_heads;
  shape.head_dim = heads.head_dim;
  shape.dtype = dtype;
  shape.max_slots = slots;
  shape.max_pages = PagesFor(length);
  shape.num_pages = slots * heads.kv_heads * shape.max_pages;
  shape.k_shift = heads.k_shift;
  shape.v_shift = heads.v_shift;
  return shape;
}

// EvictParams's, where an output norm follows, with what pages of 8 bits add to a value.
std::vector<double> LogMaxValues(const HeadInputs& in) {
  const HeadShape& shape = in.shape;
  if (!shape.output_norm) return {};
  std::vector<double> logs;
  for (int head = 0; head < shape.q_heads; ++head) {
    const int64_t column =
        shape.hidden() + shape.kv() + head / (shape.q_heads / shape.kv_heads) * shape.head_dim;
    double largest = in.length == 0 ? 1 : 0;  // any, for constants without rows
    for (int64_t row = 0; row < in.length; ++row) {
      double square = 0;
      for (int m = 0; m < shape.head_dim; ++m) square += std::pow(in.at(row, column + m), 2);
      largest = std::max(largest, square);
    }
    logs.push_back(std::log(ProductInflation(in.pages)) + std::log(largest) / 2);
  }
  return logs;
}

// The parameter structs of one run, with the arrays that they point to.
struct HeadRun::Parameters {
  Parameters(Ops& ops, const PagedKvShape& shape, const HeadInputs& in, const RunOptions& options)
      : wide(shape.residual_dtype()),
        q_norm(Upload(ops, in.q_norm, wide)),
        k_norm(Upload(ops, in.k_norm, wide)),
        output_norm(Upload(ops, in.output_norm, wide)),
        frequency(UploadRaw(ops, in.rope_frequency)),
        sink(UploadRaw(ops, in.sink)),
        q_cap(UploadRaw(ops, in.q_cap)),
        k_cap(UploadRaw(ops, in.k_cap)),
        diagonal(UploadRaw(ops, in.bound_diagonal)),
        self_logit_bound(UploadRaw(ops, in.self_logit_bound)),
        max_logit_bound(UploadRaw(ops, in.max_logit_bound)),
        log_max_value(UploadRaw(ops, LogMaxValues(in))) {
    bound.diagonal = diagonal.as<float>();
    bound.scale = kKeyNormInflation;
    bound.self_logit_bound = self_logit_bound.as<double>();
    bound.max_logit_bound = max_logit_bound.as<double>();
    if (options.bound != nullptr) bound = *options.bound;
    bounds = UploadRaw(ops, std::vector<QueryBound>(static_cast<size_t>(shape.layers), bound));
    append.k_column = in.shape.hidden();
    append.v_column = in.shape.hidden() + in.shape.kv();
    if (in.shape.k_shift) append.k_shift_column = in.k_shift_column();
    if (in.shape.v_shift) append.v_shift_column = in.v_shift_column();
    append.fgate_column = in.gate_column();
    append.min_log_gate = options.min_log_gate;
    for (double u : in.max_logit_bound) {
      append.min_log_gate = std::min(append.min_log_gate, MinLogGate(u));
    }
    append.q_norm = q_norm.data();
    append.k_norm = k_norm.data();
    append.q_cap = q_cap.as<float>();
    append.k_cap = k_cap.as<float>();
    append.rope_frequency = frequency.as<double>();
    append.attention_factor = in.shape.attention_factor;
    append.bound = bound;
    append.acp = options.acp;
  }

  // Attention's parameters for the rows of append.projection, without outputs.
  AttentionParams Attention(const HeadInputs& in) const {
    const int64_t hidden = in.shape.hidden();
    AttentionParams attention;
    attention.q = append.projection.Columns(0, hidden);
    attention.transform = {
        .norm = output_norm.data(), .eps = kNormEps, .gate = {}, .act = in.shape.gate_act};
    if (in.shape.output_gate) {
      attention.transform.gate = append.projection.Columns(in.output_gate_column(), hidden);
    }
    attention.sink = sink.as<float>();
    attention.acp = append.acp;
    attention.bound = bound;
    return attention;
  }

  EvictParams Evict(int64_t* pages_evicted, void* lost_mass) const {
    return {.acp = append.acp,
            .self_logit_bound = bound.self_logit_bound,
            .max_logit_bound = bound.max_logit_bound,
            .pages_evicted = pages_evicted,
            .max_norm_product = bound.max_norm_product,
            .log_max_value = log_max_value.as<double>(),
            .lost_mass = static_cast<LostMass*>(lost_mass),
            .bounds = bounds.as<QueryBound>(),
            .diagonal = IsDiagonal(bound)};
  }

  DType wide;
  Buffer q_norm, k_norm, output_norm, frequency, sink, q_cap, k_cap, diagonal, self_logit_bound,
      max_logit_bound, log_max_value, bounds;
  QueryBound bound;
  AppendParams append;
};

HeadRun::HeadRun(Ops& ops, const PagedKv& kv, const HeadInputs& constants,
                 const RunOptions& options)
    : ops_(ops),
      kv_(kv),
      in_(constants),
      parameters_(std::make_unique<Parameters>(ops, kv.shape, constants, options)) {}

HeadRun::~HeadRun() = default;

HeadRun::Result HeadRun::Step(const std::vector<StepRows>& sequences,
                              const std::vector<double>& projection, bool attend) {
  std::vector<int32_t> slots;
  std::vector<int64_t> row_begin = {0}, positions;
  std::vector<double> tolerances;
  int64_t longest = 0;
  BatchView batch;
  for (const StepRows& sequence : sequences) {
    if (batch.num_decodes == batch.num_seqs++ && sequence.rows == 1) ++batch.num_decodes;
    slots.push_back(sequence.slot);
    row_begin.push_back(row_begin.back() + sequence.rows);
    positions.push_back(sequence.position);
    longest = std::max(longest, sequence.position + sequence.rows);
    tolerances.push_back(sequence.log_tolerance);
  }
  const int64_t rows = batch.num_rows = row_begin.back(), seqs = batch.num_seqs;
  const Buffer slot = UploadRaw(ops_, slots), begin = UploadRaw(ops_, row_begin),
               position = UploadRaw(ops_, positions), tolerance = UploadRaw(ops_, tolerances);
  batch.slot = slot.as<int32_t>();
  batch.row_begin = begin.as<int64_t>();
  batch.position = position.as<int64_t>();
  batch.log_tolerance = tolerance.as<double>();
  batch.max_tokens = longest;
  batch.small = rows == 1 && longest <= kSmallBatchTokens;

  Parameters& p = *parameters_;
  const DType wide = p.wide, narrow = ops_.ActivationDType(wide);
  const int64_t columns = in_.columns(), hidden = in_.shape.hidden(), heads = in_.shape.q_heads;
  const int64_t stride = (columns + 7) / 8 * 8;  // rows start at 16 bytes
  const Buffer out = ops_.Allocate(static_cast<size_t>(rows * hidden) * SizeOf(narrow));
  const Buffer lse = ops_.Allocate(static_cast<size_t>(rows * heads) * SizeOf(wide));
  const Buffer lost = UploadRaw(ops_, std::vector<LostMass>(static_cast<size_t>(seqs)));
  const Buffer counters = UploadRaw(ops_, std::vector<int64_t>(static_cast<size_t>(3 * seqs), 0));
  int64_t* counter = counters.as<int64_t>();
  ops_.BeginStep(batch, kv_, nullptr);
  Result result;
  for (int layer = 0; layer < kv_.shape.layers; ++layer) {
    std::vector<double> of_layer = Spread(projection, columns, stride);
    for (double& x : of_layer) x = std::ldexp(x, -layer);
    const Buffer in = Upload(ops_, of_layer, narrow);
    p.append.layer = layer;
    p.append.projection = {in.data(), narrow, rows, columns, stride};
    ops_.Append(batch, p.append, kv_, nullptr);
    AttentionParams attention = p.Attention(in_);
    attention.layer = layer;
    attention.out = {out.data(), narrow, rows, hidden, hidden};
    attention.lse = {lse.data(), wide, rows, heads, heads};
    attention.blocks_total = counter;
    attention.blocks_pruned = counter + seqs;
    if (attend) ops_.Attention(batch, attention, kv_, nullptr);
    Download(ops_, in, narrow, of_layer);
    const std::vector<double> queries = Spread(of_layer, stride, columns);
    result.projection.insert(result.projection.end(), queries.begin(), queries.end());
    std::vector<double> outputs(static_cast<size_t>(rows * hidden)),
        sums(static_cast<size_t>(rows * heads));
    if (attend) Download(ops_, out, narrow, outputs);
    if (attend) Download(ops_, lse, wide, sums);
    result.out.insert(result.out.end(), outputs.begin(), outputs.end());
    result.lse.insert(result.lse.end(), sums.begin(), sums.end());
  }
  ops_.Evict(batch, p.Evict(counter + 2 * seqs, attend ? lost.data() : nullptr), kv_, nullptr);
  result.lost_mass.resize(sequences.size());
  ops_.CopyToHost(lost.data(), lost.bytes(), result.lost_mass.data(), nullptr);
  for (auto* counts : {&result.blocks_total, &result.blocks_pruned, &result.pages_evicted}) {
    counts->resize(sequences.size());
    ops_.CopyToHost(counter, sequences.size() * sizeof(int64_t), counts->data(), nullptr);
    counter += seqs;
  }
  return result;
}

HeadOutputs RunHeads(Ops& ops, PagedKvStorage& storage, const HeadInputs& in,
                     const RunOptions& options) {
  const PagedKv& kv = storage.view();
  ops.Reserve({.shape = kv.shape, .max_rows = in.length, .max_seqs = 1});
  HeadRun run(ops, kv, in, options);
  HeadOutputs result;
  int64_t position = 0;
  for (size_t i = 0; position < in.length; ++i) {
    const int64_t chunk =
        options.chunks.empty() ? in.length : options.chunks[std::min(i, options.chunks.size() - 1)];
    const int64_t count = std::min(chunk, in.length - position);
    const auto rows = in.projection.begin() + position * in.columns();
    const HeadRun::Result step =
        run.Step({{options.slot, position, count, options.log_tolerance}},
                 {rows, rows + count * in.columns()},
                 (static_cast<int64_t>(i) + 1) % options.attend_every == 0);
    result.out.insert(result.out.end(), step.out.begin(), step.out.end());
    result.lse.insert(result.lse.end(), step.lse.begin(), step.lse.end());
    result.blocks_total += step.blocks_total[0];
    result.blocks_pruned += step.blocks_pruned[0];
    result.pages_evicted += step.pages_evicted[0];
    result.lost_mass.Add(step.lost_mass[0]);
    position += count;
  }
  const auto kv_heads = static_cast<size_t>(in.shape.kv_heads);
  const int64_t list = kv.ListIndex(options.slot, 0, 0);
  result.first_live.resize(kv_heads);
  result.max_log_evicted_mass.resize(kv_heads);
  ops.CopyToHost(kv.first_live + list, kv_heads * sizeof(int32_t), result.first_live.data(),
                 nullptr);
  ops.CopyToHost(kv.max_log_evicted_mass + list, kv_heads * sizeof(double),
                 result.max_log_evicted_mass.data(), nullptr);
  ops.Release(&options.slot, 1, kv, nullptr);
  return result;
}

HeadOutputs RunHeads(Ops& ops, const HeadInputs& in, const RunOptions& options) {
  PagedKvStorage storage(ShapeFor(in.shape, in.length, options.dtype), ops);
  return RunHeads(ops, storage, in, options);
}

namespace {

// One for each of the model's choices.
std::vector<HeadShape> ShapeVariants() {
  HeadShape one_head{1, 1, 64};
  HeadShape grouped{6, 2, 32};
  HeadShape shifted{2, 2, 64, true, true};
  HeadShape key_shift_only{2, 2, 32, true, false};
  HeadShape rope{4, 2, 32, true, false, true, true};
  HeadShape llama{2, 2, 64, false, false, false, false};
  std::vector<HeadShape> shapes = {one_head, grouped, shifted, key_shift_only, rope, llama};
  HeadShape normed_and_gated{3, 3, 64, true, true};
  normed_and_gated.output_norm = normed_and_gated.output_gate = true;
  HeadShape normed{2, 2, 32};
  normed.output_norm = true;
  HeadShape gated{4, 1, 64};
  gated.output_gate = true;
  gated.gate_act = Activation::kSilu;
  HeadShape sunk{4, 2, 64};
  sunk.sink = true;
  HeadShape capped{4, 4, 32, true, false, false};
  capped.norm_caps = true;
  HeadShape foxified{6, 2, 64, false, false, false, true};
  foxified.sink = foxified.norm_caps = true;
  shapes.insert(shapes.end(), {normed_and_gated, normed, gated, sunk, capped, foxified});
  for (HeadShape yarn : {rope, foxified, HeadShape{4, 2, 128, false, false, false, true}}) {
    yarn.attention_factor = 1.2;
    shapes.push_back(yarn);
  }
  return shapes;
}

}  // namespace

std::vector<HeadInputs> AttentionCases(const std::vector<int>& head_dims) {
  std::vector<HeadInputs> cases;
  for (const int64_t length : {1, 2, 63, 64, 65, 127, 128, 129, 200, 300}) {
    cases.push_back(RandomInputs({}, length, 7 + static_cast<uint64_t>(length), {3, 6}));
  }
  for (const int head_dim : head_dims) {
    cases.push_back(RandomInputs({2, 2, head_dim}, 200, 11, {3}));
  }
  for (const HeadShape& shape : ShapeVariants()) {
    cases.push_back(RandomInputs(shape, 190, 13, {1, 4, 8}));
  }
  cases.push_back(RandomInputs({}, 150, 17, {-60, 60}));
  cases.push_back(RandomInputs({}, 150, 19, {-5, 16}));
  // Sinks that take all or nothing; caps that take all.
  for (const float cap : {1e-30F, 1.0F, 1e30F}) {
    HeadShape shape{6, 2, 64, false, false, false, true};
    shape.sink = shape.norm_caps = true;
    HeadInputs inputs = RandomInputs(shape, 130, 29, {4});
    inputs.sink = {-60, 60, 0, 60, -60, 0};
    inputs.q_cap.assign(6, cap);
    inputs.k_cap.assign(2, cap);
    SetBounds(inputs);
    cases.push_back(inputs);
  }
  return cases;
}

double GateLogit(double log_f) { return log_f < -30 ? log_f : -std::log(std::expm1(-log_f)); }

double LargestError(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace fox::testing
