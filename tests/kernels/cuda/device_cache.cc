// Makes the cache of a test: random tokens, appended by the CPU backend, evictions as
// kernels/cpu/evict.cc decides them, and all of it as device arrays.
// See device_cache.h; device_cache_oracle.cc has what attention may skip of it and must make of it.
#include "tests/kernels/cuda/device_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/core/dtype.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/page_access.h"
#include "kernels/cuda/attention/decode/decode.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/paging/acp.h"

namespace fox::cuda::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kSparePages = 5, kSpareRows = 5, kSpareEntries = 3;

uint16_t Bits(float x) { return BFloat16(x).bits; }

template <typename T>
std::vector<T> Poisoned(size_t size) {
  std::vector<T> values(size);
  std::memset(values.data(), kPoison, size * sizeof(T));
  return values;
}

}  // namespace

DeviceCache::DeviceCache(const CacheOptions& options) : options_(options), rng_(options.seed) {
  row_begin_ = {0};
  for (int s = 0; s < num_seqs(); ++s) {
    EXPECT_TRUE(seq(s).rows >= 1 && seq(s).rows <= seq(s).length) << s;
    EXPECT_TRUE(seq(s).slot >= 0 || seq(s).rows == 1) << s;
    row_begin_.push_back(row_begin_.back() + seq(s).rows);
  }
  num_rows_ = row_begin_.back();
  fox::testing::HeadShape shape{options_.q_heads, options_.kv_heads, options_.head_dim};
  shape.qk_norm = options_.qk_norm;
  shape.sink = options_.sink;
  constants_ = RandomInputs(shape, 0, rng_(), {0});
  keys_.resize(static_cast<size_t>(num_seqs() * options_.kv_heads));
  values_.resize(keys_.size());
  gates_.resize(static_cast<size_t>(num_seqs() * options_.q_heads));
  queries_.resize(static_cast<size_t>(num_rows_ * shape.hidden()));
  first_live_.assign(keys_.size(), 0);
  for (int s = 0; s < num_seqs(); ++s) {
    if (seq(s).slot < 0) continue;
    MakeSequence(s);
    for (int h = 0; h < options_.kv_heads; ++h) {
      first_live_[static_cast<size_t>(s * options_.kv_heads + h)] = EvictList(s, h);
    }
  }
  CutRows(kPageTokens, &blocks_, true);
  CutRows(kTileRows, &tiles_, false);
  MakePages();
  MakeBatch();
  MakeQueries();
  MakeOutputTransform();
  MakeSchedule();
}

int DeviceCache::first_live(int s, int kv_head) const {
  return first_live_[static_cast<size_t>(s * options_.kv_heads + kv_head)];
}

double DeviceCache::LogEps(int s) const {
  return options_.acp == AcpMode::kOff ? -kInfinity : seq(s).log_tolerance;
}

// Appends all tokens by the CPU backend, which evicts nothing here, and keeps its pages.
void DeviceCache::MakeSequence(int s) {
  const int64_t length = seq(s).length, d = options_.head_dim;
  fox::testing::HeadInputs rows =
      RandomInputs(constants_.shape, length, rng_(), options_.gate_means);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  for (int64_t j = 0; j < length; ++j) {
    for (int h = 0; h < options_.q_heads; ++h) {
      if (uniform(rng_) >= options_.strong_gate_rate) continue;
      rows.at(j, rows.gate_column() + h) = -40 - 60 * uniform(rng_);
    }
    for (int h = 0; h < options_.q_heads + options_.kv_heads && !options_.qk_norm; ++h) {
      const double size = std::exp(0.4 * normal(rng_));
      for (int64_t m = h * d; m < (h + 1) * d; ++m) rows.at(j, m) *= size;
    }
  }
  CpuOps ops({DType::kF32, true, 1});
  PagedKvStorage storage(ShapeFor(constants_.shape, length, DType::kBF16), ops);
  const PagedKv& kv = storage.view();
  fox::testing::HeadRun run(ops, kv, constants_, {.acp = options_.acp});
  const std::vector<double> projection =
      run.Step({{0, 0, length, -kInfinity}}, rows.projection, false).projection;
  const int64_t hidden = rows.shape.hidden(), first_row = length - seq(s).rows;
  for (int64_t i = 0; i < seq(s).rows * hidden; ++i) {
    const double q =
        projection[static_cast<size_t>((first_row + i / hidden) * rows.columns() + i % hidden)];
    queries_[static_cast<size_t>(row_begin_[static_cast<size_t>(s)] * hidden + i)] =
        static_cast<float>(BFloat16(static_cast<float>(q)));
  }
  for (int h = 0; h < options_.kv_heads; ++h) {
    const int32_t* table = kv.Table(kv.ListIndex(0, 0, h));
    std::vector<float>& keys = keys_[static_cast<size_t>(s * options_.kv_heads + h)];
    std::vector<float>& values = values_[static_cast<size_t>(s * options_.kv_heads + h)];
    keys.resize(static_cast<size_t>(length * d));
    for (int64_t j = 0; j < length; ++j) {
      const int32_t page = table[j / kPageTokens];
      const int token = static_cast<int>(j % kPageTokens);
      ReadKey<BFloat16>(kv, page, token, keys.data() + j * d);
      const BFloat16* value = ValuesOf<BFloat16>(kv, page) + token * d;
      for (int64_t m = 0; m < d; ++m) values.push_back(WidenElement(value[m]));
    }
    for (int g = 0; g < group(); ++g) ReadGates(s, h * group() + g, rows, kv);
  }
}

void DeviceCache::ReadGates(int s, int q_head, const fox::testing::HeadInputs& rows,
                            const PagedKv& kv) {
  ListGates& gates = gates_[static_cast<size_t>(s * options_.q_heads + q_head)];
  const int32_t* table = kv.Table(kv.ListIndex(0, 0, q_head / group()));
  double c = 0;
  for (int64_t j = 0; j < seq(s).length; ++j) {
    const int32_t page = table[j / kPageTokens];
    const int64_t summary = kv.SummaryIndex(page, q_head % group());
    const double logit = rows.at(j, rows.gate_column() + q_head);
    gates.c.push_back(c += LogForgetGate(static_cast<double>(static_cast<float>(logit)), -128));
    gates.local.push_back(kv.LogFOffsets<float>(summary)[j % kPageTokens]);
    if (j % kPageTokens == 0) gates.base.push_back(kv.page_cum_log_f[summary]);
    if (j % kPageTokens != kPageTokens - 1 || options_.acp == AcpMode::kOff) continue;
    gates.log_mass_bound.push_back(kv.log_mass_bound[summary]);
    if (options_.acp == AcpMode::kPaper) continue;
    gates.log_denominator_bound.push_back(kv.log_denominator_bound[summary]);
  }
}

double DeviceCache::CacheC(const ListGates& gates, int64_t position) const {
  return gates.base[static_cast<size_t>(position / kPageTokens)] +
         static_cast<double>(gates.local[static_cast<size_t>(position)]);
}

// The first live page after the page ends before the step's rows.
int DeviceCache::EvictList(int s, int kv_head) const {
  const double log_eps = LogEps(s);
  if (!options_.evict || !std::isfinite(log_eps)) return 0;
  int first = 0;
  for (int p = 0; p < (seq(s).length - seq(s).rows) / kPageTokens; ++p) {
    const auto may_drop = [&](int page) {
      for (int g = 0; g < group(); ++g) {
        const int head = kv_head * group() + g;
        const ListGates& list = gates(s, head);
        const double c_end = UpperC(list, static_cast<int64_t>(p) * kPageTokens + kPageTokens - 1);
        const double threshold = Threshold(list, head, c_end, p);
        if (!MayDrop(list.log_mass_bound[static_cast<size_t>(page)], threshold, log_eps))
          return false;
      }
      return true;
    };
    while (first < p && may_drop(first)) ++first;
  }
  return first;
}

// Cuts the rows at multiples of `unit`; sequences of one row too if `single_rows`.
void DeviceCache::CutRows(int unit, std::vector<RowBlock>* blocks, bool single_rows) const {
  for (int s = 0; s < num_seqs(); ++s) {
    if (seq(s).slot < 0 || (seq(s).rows == 1 && !single_rows)) continue;
    int64_t row = row_begin_[static_cast<size_t>(s)], position = seq(s).length - seq(s).rows;
    while (position < seq(s).length) {
      const int64_t count = std::min(unit - position % unit, seq(s).length - position);
      blocks->push_back({s, seq(s).slot, static_cast<int32_t>(row), static_cast<int32_t>(count),
                         static_cast<int32_t>(position)});
      row += count;
      position += count;
    }
  }
}

void DeviceCache::MakeShape() {
  PagedKvShape& shape = kv_.shape;
  shape.layers = options_.layers;
  shape.q_heads = options_.q_heads;
  shape.kv_heads = options_.kv_heads;
  shape.head_dim = options_.head_dim;
  shape.dtype = DType::kBF16;
  shape.num_pages = kSparePages;
  for (int s = 0; s < num_seqs(); ++s) {
    const int pages = PagesFor(seq(s).length);
    shape.max_slots = std::max(shape.max_slots, seq(s).slot + 2);
    shape.max_pages = std::max(shape.max_pages, pages + kSpareEntries);
    for (int h = 0; h < options_.kv_heads && seq(s).slot >= 0; ++h) {
      shape.num_pages += pages - first_live(s, h);
    }
  }
}

// Pages are anywhere in the pool; what lies past a sequence's end stays poison.
void DeviceCache::MakePages() {
  MakeShape();
  const PagedKvShape& shape = kv_.shape;
  const int d = shape.head_dim, page_size = d * kPageTokens;
  const auto pages = static_cast<size_t>(shape.num_pages);
  const auto summaries = pages * static_cast<size_t>(group());
  std::vector<int32_t> free(pages);
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), rng_);
  auto keys = Poisoned<uint16_t>(pages * static_cast<size_t>(page_size)), values = keys;
  auto local = Poisoned<float>(summaries * kPageTokens);
  auto base = Poisoned<double>(summaries), mass = base, denominator = base;
  const auto lists = static_cast<size_t>(shape.max_slots * shape.lists_per_slot());
  auto table = Poisoned<int32_t>(lists * static_cast<size_t>(shape.max_pages));
  auto first = Poisoned<int32_t>(lists);
  auto length = Poisoned<int64_t>(static_cast<size_t>(shape.max_slots));
  const auto fill_page = [&](int s, int kv_head, int p, int32_t page) {
    const int64_t begin = static_cast<int64_t>(p) * kPageTokens;
    const int64_t tokens = std::min<int64_t>(kPageTokens, seq(s).length - begin);
    const float *k = Key(s, kv_head, begin), *v = Value(s, kv_head, begin);
    std::transform(k, k + tokens * d, keys.begin() + int64_t{page} * page_size, Bits);
    std::transform(v, v + tokens * d, values.begin() + int64_t{page} * page_size, Bits);
    for (int g = 0; g < group(); ++g) {
      const ListGates& list = gates(s, kv_head * group() + g);
      const auto at = static_cast<size_t>(page * group() + g), n = static_cast<size_t>(p);
      std::copy_n(list.local.begin() + begin, tokens,
                  local.begin() + static_cast<int64_t>(at) * kPageTokens);
      base[at] = list.base[n];
      if (n < list.log_mass_bound.size()) mass[at] = list.log_mass_bound[n];
      if (n < list.log_denominator_bound.size()) denominator[at] = list.log_denominator_bound[n];
    }
  };
  for (int s = 0; s < num_seqs(); ++s) {
    if (seq(s).slot < 0) continue;
    length[static_cast<size_t>(seq(s).slot)] = seq(s).length;
    for (int h = 0; h < options_.kv_heads; ++h) {
      const int64_t list = kv_.ListIndex(seq(s).slot, options_.layer, h);
      first[static_cast<size_t>(list)] = first_live(s, h);
      for (int p = first_live(s, h); p < PagesFor(seq(s).length); ++p) {
        table[static_cast<size_t>(list * shape.max_pages + p)] = free.back();
        fill_page(s, h, p, free.back());
        free.pop_back();
      }
    }
  }
  kv_.keys = memory_.Copy(keys);
  kv_.values = memory_.Copy(values);
  kv_.log_f_offset = memory_.Copy(local);
  kv_.page_cum_log_f = memory_.Copy(base);
  kv_.log_mass_bound = memory_.Copy(mass);
  kv_.log_denominator_bound = memory_.Copy(denominator);
  kv_.page_table = memory_.Copy(table);
  kv_.first_live = memory_.Copy(first);
  kv_.length = memory_.Copy(length);
}

void DeviceCache::MakeBatch() {
  std::vector<int32_t> slot;
  std::vector<int64_t> position;
  std::vector<double> tolerance;
  for (const CacheSequence& sequence : options_.sequences) {
    slot.push_back(sequence.slot);
    position.push_back(sequence.length - sequence.rows);
    tolerance.push_back(sequence.log_tolerance);
  }
  batch_.num_seqs = num_seqs();
  batch_.num_rows = num_rows_;
  batch_.slot = memory_.Copy(slot);
  batch_.row_begin = memory_.Copy(row_begin_);
  batch_.position = memory_.Copy(position);
  batch_.log_tolerance = memory_.Copy(tolerance);
}

// q is in the middle of a wider matrix that has rows after the batch's.
void DeviceCache::MakeQueries() {
  const int64_t d = options_.head_dim, width = options_.q_heads * d;
  const int64_t stride = width + 48, column = 16, rows = num_rows_ + kSpareRows;
  auto matrix = Poisoned<uint16_t>(static_cast<size_t>(rows * stride));
  ForEachRow([&](int64_t r) {
    for (int h = 0; h < options_.q_heads; ++h) {
      const float* q = Query(r, h);
      std::transform(q, q + d, matrix.begin() + r * stride + column + h * d, Bits);
    }
  });
  out_array_ = DeviceArray<uint16_t>(static_cast<size_t>(rows * (width + 8)));
  lse_array_ = DeviceArray<float>(static_cast<size_t>(rows * (options_.q_heads + 1)));
  total_array_ = DeviceArray<int64_t>(static_cast<size_t>(num_seqs()));
  skipped_array_ = DeviceArray<int64_t>(static_cast<size_t>(num_seqs()));
  params_.layer = options_.layer;
  params_.q = {memory_.Copy(matrix) + column, DType::kBF16, num_rows_, width, stride};
  params_.out = {out_array_.data(), DType::kBF16, num_rows_, width, width + 8};
  params_.lse = {lse_array_.data(), DType::kF32, num_rows_, options_.q_heads, options_.q_heads + 1};
  params_.sink = memory_.Copy(constants_.sink);
  params_.acp = options_.acp;
  params_.bound.self_logit_bound = memory_.Copy(constants_.self_logit_bound);
  params_.bound.max_logit_bound = memory_.Copy(constants_.max_logit_bound);
  params_.bound.max_norm_product = params_.bound.max_logit_bound;
  params_.blocks_total = total_array_.data();
  params_.blocks_pruned = skipped_array_.data();
}

// Columns beside the gate's are poison, as are rows of padding.
void DeviceCache::MakeOutputTransform() {
  const int64_t width = int64_t{options_.q_heads} * options_.head_dim;
  const int64_t stride = width + 24, column = 8;
  std::normal_distribution<float> normal;
  params_.transform.eps = kNormEps;
  params_.transform.act = options_.gate_act;
  if (options_.output_norm) {
    for (int64_t i = 0; i < width; ++i) output_norm_.push_back(1 + 0.15f * normal(rng_));
    params_.transform.norm = memory_.Copy(output_norm_);
  }
  if (!options_.output_gate) return;
  auto matrix = Poisoned<uint16_t>(static_cast<size_t>(num_rows_ * stride));
  output_gate_.resize(static_cast<size_t>(num_rows_ * width));
  ForEachRow([&](int64_t r) {
    for (int64_t i = 0; i < width; ++i) {
      const BFloat16 gate(2 * normal(rng_));
      matrix[static_cast<size_t>(r * stride + column + i)] = gate.bits;
      output_gate_[static_cast<size_t>(r * width + i)] = static_cast<float>(gate);
    }
  });
  params_.transform.gate = {memory_.Copy(matrix) + column, DType::kBF16, num_rows_, width, stride};
}

void DeviceCache::MakeSchedule() {
  const auto padded = [&](std::vector<RowBlock> blocks) {
    const auto count = blocks.size();
    blocks.resize(count + kSpareEntries);
    std::memset(static_cast<void*>(blocks.data() + count), kPoison,
                kSpareEntries * sizeof(RowBlock));
    return memory_.Copy(blocks);
  };
  schedule_.max_blocks = static_cast<int>(blocks_.size()) + kSpareEntries;
  schedule_.max_tiles = num_tiles() + kSpareEntries;
  boundaries_ = Boundaries();
  boundary_array_ = DeviceArray<int32_t>(boundaries_);
  tile_counter_array_ = DeviceArray<int32_t>(std::vector{0});
  schedule_.blocks = padded(blocks_);
  schedule_.num_blocks = memory_.Copy(std::vector{static_cast<int32_t>(blocks_.size())});
  schedule_.tiles = padded(tiles_);
  schedule_.num_tiles = memory_.Copy(std::vector<int32_t>{num_tiles()});
  schedule_.boundary = boundary_array_.data();
  schedule_.tile_counter = tile_counter_array_.data();
  MakeSplits();
  ResetOutputs();
}

// Room for the plan of decode attention.
void DeviceCache::MakeSplits() {
  schedule_.max_seq_heads = num_seqs() * options_.q_heads + kSpareEntries;
  seq_head_array_ =
      DeviceArray<SeqHead>(static_cast<size_t>(options_.layers * schedule_.max_seq_heads));
  schedule_.max_splits = static_cast<int>(MaxDecodeSplits(num_seqs(), kv_.shape)) + kSpareEntries;
  partial_array_ = DeviceArray<uint32_t>(static_cast<size_t>(
      int64_t{schedule_.max_splits} * HeadsTogether(kv_.shape) * PartialFloats(options_.head_dim)));
  arrival_counter_array_ =
      DeviceArray<int32_t>(std::vector<int32_t>(static_cast<size_t>(schedule_.max_seq_heads)));
  schedule_.seq_heads = seq_head_array_.data();
  // No blocks for heads without a kernel.
  const cudaError_t error = DecodeBlocks(kv_.shape, &schedule_.decode_blocks);
  EXPECT_TRUE(error == cudaSuccess || error == cudaErrorInvalidValue);
  schedule_.block_starts =
      memory_.Poison<BlockStart>(static_cast<size_t>(options_.layers * schedule_.decode_blocks));
  schedule_.partial = reinterpret_cast<float*>(partial_array_.data());
  schedule_.arrival_counter = arrival_counter_array_.data();
}

void DeviceCache::PoisonBoundaries() {
  boundary_array_.Fill(kPoison);
  tile_counter_array_.Fill(kPoison);
}

void DeviceCache::ResetOutputs() {
  const std::vector<int64_t> counts(static_cast<size_t>(num_seqs()), kFirstCount);
  total_array_.CopyFrom(counts);
  skipped_array_.CopyFrom(counts);
  out_array_.Fill(kPoison);
  lse_array_.Fill(kPoison);
  partial_array_.Fill(kPoison);
  tile_counter_array_.CopyFrom({0});
}

std::vector<CacheSequence> OneRowEach(const std::vector<int64_t>& lengths) {
  std::vector<CacheSequence> sequences;
  for (const int64_t length : lengths) {
    const size_t left = lengths.size() - sequences.size();
    sequences.push_back({.length = length, .slot = static_cast<int>(left)});
  }
  return sequences;
}

cudaError_t Plan(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                 int layer) {
  const cudaError_t error = PlanSplits(batch, kv, schedule, layer, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

}  // namespace fox::cuda::testing
