// Append on the GPU against the CPU backend on the same bf16 inputs: pages, gates, summaries, state
// and queries, in one step or many.
//
// Where keys are copied, both have the same bits, and summaries differ by float32 rounding inside a
// page. Where they are computed (norm, rotation, shift), float32 sums in another order may round a
// key to the next bf16: 2^-7 of it at most. A bound a(k) and the mean of keys then move by 2^-7 of
// the largest key's at most, and so do log M and beta.
#include "kernels/cuda/append/append.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/page_access.h"
#include "kernels/cpu/query_bound.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/interface/paged_kv_storage.h"
#include "kernels/paging/acp.h"
#include "tests/kernels/cuda/device_kv.h"

namespace fox::cuda::testing {
namespace {

enum class Bound : uint8_t { kDiagonal, kDense, kAll };

struct AppendSetup {
  int head_dim = 64;
  int q_heads = 3;
  int kv_heads = 3;
  bool shift = false;
  bool norm = false;
  bool rope = false;
  bool caps = false;
  bool gate_bias = false;
  Bound bound = Bound::kDiagonal;
  AcpMode acp = AcpMode::kCertified;
  double gate_mean = 3;
  uint64_t seed = 1;

  bool exact_keys() const { return !shift && !norm && !rope && !caps; }
};

constexpr int kLayers = 2, kLayer = 1;

// Both backends, their caches and the parameters of one layer.
class AppendPair {
 public:
  AppendPair(const AppendSetup& setup, int slots, int64_t longest)
      : setup_(setup),
        rng_(setup.seed),
        cpu_(CpuOptions{DType::kF32, true, 1}),
        shape_(ShapeOf(setup, slots, longest)),
        cpu_kv_(shape_, cpu_),
        kv_(shape_),
        lengths_(static_cast<size_t>(slots), 0) {
    MakeParameters();
  }

  // Lets the slot's sequence begin at `position`, a page's first, as if it had been evicted so far.
  void StartAt(int slot, int64_t position) {
    lengths_[static_cast<size_t>(slot)] = position;
    cpu_kv_.view().length[slot] = position;
    kv_.length.CopyFrom(lengths_);
    std::vector<int32_t> first = kv_.first_live.ToHost();
    for (int64_t l = 0; l < shape_.lists_per_slot(); ++l) {
      const int64_t list = cpu_kv_.view().ListIndex(slot, 0, 0) + l;
      first[static_cast<size_t>(list)] = PagesFor(position);
      cpu_kv_.view().first_live[list] = PagesFor(position);
    }
    kv_.first_live.CopyFrom(first);
  }

  // Appends rows[i] random rows to slot i on both backends; 0: the slot is not in the step. With
  // `padding`, the device's batch holds sequences of slot -1 among the others.
  void Step(const std::vector<int64_t>& rows, bool padding = false) {
    std::vector<BatchEntry> cpu_batch, gpu_batch;
    std::vector<int64_t> rows_on_gpu;  // the GPU's row for each of the CPU's
    int64_t gpu_rows = 0;
    for (size_t slot = 0; slot < rows.size(); ++slot) {
      if (padding && slot % 2 == 0) {
        gpu_batch.push_back({-1, 0, 1});
        ++gpu_rows;
      }
      if (rows[slot] == 0) continue;
      cpu_batch.push_back({static_cast<int>(slot), lengths_[slot], rows[slot], -INFINITY});
      gpu_batch.push_back(cpu_batch.back());
      for (int64_t r = 0; r < rows[slot]; ++r) rows_on_gpu.push_back(gpu_rows++);
      lengths_[slot] += rows[slot];
    }
    const auto stride = static_cast<size_t>(stride_);
    std::vector<float> wide(rows_on_gpu.size() * stride);
    std::vector<uint16_t> narrow(static_cast<size_t>(gpu_rows) * stride, 0xffff);
    FillProjections(rows_on_gpu, wide, narrow);
    RunCpu(cpu_batch, wide);
    RunGpu(gpu_batch, narrow);
    CompareQueries(rows_on_gpu, wide, narrow);
  }

  // Everything that outlasts the step.
  void Compare() {
    keys_ = kv_.keys.ToHost();
    values_ = kv_.values.ToHost();
    local_ = kv_.log_f_offset.ToHost();
    base_ = kv_.page_cum_log_f.ToHost();
    log_mass_bound_ = kv_.log_mass_bound.ToHost();
    log_denominator_bound_ = kv_.log_denominator_bound.ToHost();
    table_ = kv_.page_table.ToHost();
    largest_key_ = largest_local_ = 0;
    for (int slot = 0; slot < shape_.max_slots; ++slot) {
      for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) ComparePages(slot, kv_head);
      for (int head = 0; head < shape_.q_heads; ++head) CompareState(slot, head);
      CompareLastRows(slot);
    }
  }

 private:
  static PagedKvShape ShapeOf(const AppendSetup& setup, int slots, int64_t longest) {
    return {.layers = kLayers,
            .q_heads = setup.q_heads,
            .kv_heads = setup.kv_heads,
            .head_dim = setup.head_dim,
            .dtype = DType::kBF16,
            .num_pages = slots * kLayers * setup.kv_heads * std::min(PagesFor(longest), 100),
            .max_slots = slots,
            .max_pages = PagesFor(longest),
            .k_shift = setup.shift,
            .v_shift = setup.shift};
  }

  std::vector<float> Normal(int64_t count, double mean, double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values) x = static_cast<float>(normal(rng_));
    return values;
  }

  void MakeParameters() {
    const int64_t d = shape_.head_dim, hidden = shape_.q_heads * d, kv = shape_.kv_size();
    params_.layer = kLayer;
    params_.q_column = 8;  // not the first, and others between
    params_.k_column = params_.q_column + hidden;
    params_.v_column = params_.k_column + kv;
    int64_t next = params_.v_column + kv + 3;
    if (setup_.shift) {
      params_.k_shift_column = next;
      params_.v_shift_column = next + shape_.kv_heads;
      next += 2 * shape_.kv_heads;
    }
    params_.fgate_column = next;
    stride_ = (next + shape_.q_heads + 7) / 8 * 8;
    params_.acp = setup_.acp;
    params_.bound.scale = kKeyNormInflation;
    if (setup_.norm) q_norm_ = Normal(hidden, 1, 0.15), k_norm_ = Normal(kv, 1, 0.15);
    if (setup_.caps) {
      q_cap_ = Normal(shape_.q_heads, std::sqrt(d), 1);
      k_cap_ = Normal(shape_.kv_heads, std::sqrt(d), 1);
    }
    if (setup_.gate_bias) gate_bias_ = Normal(shape_.q_heads, 1, 1);
    for (int m = 0; setup_.rope && m < d / 2; ++m) {
      frequency_.push_back(std::pow(10000.0, -2.0 * m / static_cast<double>(d)));
    }
    if (setup_.seed % 2 == 0) params_.attention_factor = 1.139;
    if (setup_.bound != Bound::kDense) diagonal_ = Normal(hidden, 1, 0.15);
    if (setup_.bound != Bound::kDiagonal) {
      dense_ = Normal(hidden * d, 0, 1 / std::sqrt(static_cast<double>(d)));
      linear_ = Normal(hidden, 0, 0.2);
      absolute_ = Normal(hidden, 0.02, 0.005);
      if (setup_.bound == Bound::kAll) dense_.clear();
    }
    max_logit_bound_.assign(static_cast<size_t>(shape_.q_heads),
                            std::numeric_limits<double>::infinity());
    max_norm_product_.assign(static_cast<size_t>(shape_.q_heads), kMaxNormProduct);
    cpu_params_ = WithArrays([](const auto& host) { return host.empty() ? nullptr : host.data(); });
    gpu_params_ = WithArrays([&](const auto& host) { return memory_.Copy(host); });
  }

  // The parameters with the arrays of one side; empty ones are absent.
  template <typename Of>
  AppendParams WithArrays(const Of& of) {
    AppendParams params = params_;
    params.q_norm = of(q_norm_);
    params.k_norm = of(k_norm_);
    params.q_cap = of(q_cap_);
    params.k_cap = of(k_cap_);
    params.fgate_bias = of(gate_bias_);
    params.rope_frequency = of(frequency_);
    params.bound.diagonal = of(diagonal_);
    params.bound.dense = of(dense_);
    params.bound.linear = of(linear_);
    params.bound.absolute = of(absolute_);
    params.bound.max_logit_bound = of(max_logit_bound_);
    params.bound.max_norm_product = of(max_norm_product_);
    return params;
  }

  void FillProjections(const std::vector<int64_t>& rows_on_gpu, std::vector<float>& wide,
                       std::vector<uint16_t>& narrow) {
    std::normal_distribution<float> normal;
    for (size_t row = 0; row < rows_on_gpu.size(); ++row) {
      for (int64_t column = 0; column < stride_; ++column) {
        const int64_t gate = column - params_.fgate_column;
        const float mean =
            gate >= 0 && gate < shape_.q_heads ? static_cast<float>(setup_.gate_mean) : 0;
        const BFloat16 x(mean + normal(rng_));
        const auto at = static_cast<size_t>(column);
        wide[row * static_cast<size_t>(stride_) + at] = static_cast<float>(x);
        narrow[static_cast<size_t>(rows_on_gpu[row] * stride_) + at] = x.bits;
      }
    }
  }

  void RunCpu(const std::vector<BatchEntry>& entries, std::vector<float>& projection) {
    const HostBatch batch(entries);
    AppendParams params = cpu_params_;
    params.projection = {projection.data(), DType::kF32, batch.view.num_rows, stride_, stride_};
    cpu_.BeginStep(batch.view, cpu_kv_.view(), nullptr);
    cpu_.Append(batch.view, params, cpu_kv_.view(), nullptr);
  }

  void RunGpu(const std::vector<BatchEntry>& entries, std::vector<uint16_t>& projection) {
    const DeviceBatch batch(entries);
    const DeviceWork schedule(shape_, batch.view.num_rows, batch.view.num_seqs);
    const DeviceArray<uint16_t> rows(projection);
    AppendParams params = gpu_params_;
    params.projection = {rows.data(), DType::kBF16, batch.view.num_rows, stride_, stride_};
    ASSERT_EQ(BeginStep(batch.view, kv_.view, schedule.view, nullptr), cudaSuccess);
    // In turns as behind each kind of kernel (launch.h), none of which still runs.
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const int turn = ++gpu_runs_ % 3;
    const AppendOverlap overlap{.reads_early = turn > 0, .triggers_early = turn > 1};
    ASSERT_EQ(Append(batch.view, params, kv_.view, schedule.view, overlap, nullptr), cudaSuccess);
    const DeviceArray<QueryBound> bounds(std::vector<QueryBound>(kLayers, params.bound));
    const EvictParams evict{
        .acp = params.acp, .bounds = bounds.data(), .diagonal = IsDiagonal(params.bound)};
    ASSERT_EQ(Evict(batch.view, evict, kv_.view, schedule.view, nullptr), cudaSuccess);
    projection = rows.ToHost();
  }

  int gpu_runs_ = 0;
  // bf16 rounding is half of 2^-8; sums in another order move an element by the row's scale (norm
  // weights around 1 on unit variance: below 8) times a few float32 roundings.
  static constexpr double kFloatSlack = 8 * 0x1p-20;

  void CompareQueries(const std::vector<int64_t>& rows_on_gpu, const std::vector<float>& wide,
                      const std::vector<uint16_t>& narrow) const {
    const int64_t first = params_.q_column, end = params_.k_column;
    for (size_t row = 0; row < rows_on_gpu.size(); ++row) {
      for (int64_t column = 0; column < stride_; ++column) {
        const auto at = static_cast<size_t>(column);
        const auto expected = static_cast<double>(wide[row * static_cast<size_t>(stride_) + at]);
        const double actual = Widen(narrow[static_cast<size_t>(rows_on_gpu[row] * stride_) + at]);
        const bool is_query = column >= first && column < end;
        const double tolerance = is_query ? 0x1p-8 * std::abs(expected) + kFloatSlack : 0;
        ASSERT_LE(std::abs(actual - expected), tolerance) << "row " << row << " column " << column;
      }
    }
  }

  void ComparePages(int slot, int kv_head) {
    const PagedKv& cpu = cpu_kv_.view();
    const int64_t list = cpu.ListIndex(slot, kLayer, kv_head);
    const int64_t length = lengths_[static_cast<size_t>(slot)];
    for (int p = cpu.first_live[list]; p < PagesFor(length); ++p) {
      SCOPED_TRACE(::testing::Message() << "slot " << slot << " head " << kv_head << " page " << p);
      const int tokens =
          static_cast<int>(std::min<int64_t>(kPageTokens, length - int64_t{p} * kPageTokens));
      const int32_t cpu_page = cpu.Table(list)[p];
      const int32_t gpu_page = table_[static_cast<size_t>(list * shape_.max_pages + p)];
      ASSERT_GE(gpu_page, 0);
      CompareTokens(cpu_page, gpu_page, tokens);
      for (int g = 0; g < shape_.group(); ++g) {
        const int64_t summary = cpu.SummaryIndex(cpu_page, g);
        const auto at = static_cast<size_t>(cpu.SummaryIndex(gpu_page, g));
        CompareGates(summary, at, tokens);
        if (tokens == kPageTokens && setup_.acp != AcpMode::kOff) {
          CompareSummary(summary, at, kv_head * shape_.group() + g);
        }
      }
      if (::testing::Test::HasFailure()) return;
    }
  }

  void CompareTokens(int32_t cpu_page, int64_t gpu_page, int tokens) {
    const PagedKv& cpu = cpu_kv_.view();
    const int d = shape_.head_dim;
    std::vector<float> key(static_cast<size_t>(d));
    for (int t = 0; t < tokens; ++t) {
      ReadKey<BFloat16>(cpu, cpu_page, t, key.data());
      const BFloat16* value = ValuesOf<BFloat16>(cpu, cpu_page) + t * d;
      double square = 0;
      for (int m = 0; m < d; ++m) {
        const auto at = static_cast<size_t>((gpu_page * kPageTokens + t) * d + m);
        const auto k = static_cast<double>(key[static_cast<size_t>(m)]);
        const auto v = static_cast<double>(static_cast<float>(value[m]));
        ASSERT_LE(std::abs(Widen(keys_[at]) - k),
                  setup_.exact_keys() ? 0 : 0x1p-7 * std::abs(k) + kFloatSlack)
            << "key " << t << ", " << m;
        ASSERT_LE(std::abs(Widen(values_[at]) - v),
                  setup_.shift ? 0x1p-7 * std::abs(v) + kFloatSlack : 0)
            << "value " << t << ", " << m;
        square += k * k;
      }
      largest_key_ = std::max(largest_key_, std::sqrt(square));
    }
  }

  // Gates are float32, 1e-6 of each at most; all have one sign, so their sums are as good.
  static constexpr double kGateError = 2e-6;

  // Gates of a page and query head: indices `summary` on the CPU and `at` on the GPU.
  void CompareGates(int64_t summary, size_t at, int tokens) {
    const PagedKv& cpu = cpu_kv_.view();
    const double base = cpu.page_cum_log_f[summary];
    EXPECT_LE(std::abs(base_[at] - base), kGateError * std::abs(base)) << "page_cum_log_f";
    for (int t = 0; t < tokens; ++t) {
      const auto local = static_cast<double>(cpu.LogFOffsets<float>(summary)[t]);
      const auto actual = static_cast<double>(local_[at * kPageTokens + static_cast<size_t>(t)]);
      ASSERT_LE(std::abs(actual - local), kGateError * std::abs(local)) << "local gate " << t;
      largest_local_ = std::max(largest_local_, std::abs(local));
    }
  }

  // Above what these norms and lengths give.
  static constexpr double kMaxNormProduct = 128;

  // How far a bound on a key, or on the mean of keys, may move: relative to the largest.
  double KeyError() const { return setup_.exact_keys() ? 1e-5 : 0x1p-7 + 1e-5; }

  double LargestBound(int head) const {
    // || A || over the heads' random matrices stays below 4; diagonal weights below 2.
    double most = 0;
    const auto d = static_cast<size_t>(shape_.head_dim), first = static_cast<size_t>(head) * d;
    for (size_t m = first; m < first + d && !diagonal_.empty(); ++m) {
      most = std::max(most, static_cast<double>(std::abs(diagonal_[m])));
    }
    if (!dense_.empty()) most = 4;
    double rest = 0;
    for (size_t m = first; m < first + d && !linear_.empty(); ++m) {
      const double both = std::abs(linear_[m]) + std::abs(absolute_[m]);
      rest += both * both;
    }
    return (kKeyNormInflation * most + std::sqrt(rest)) * largest_key_;
  }

  void CompareSummary(int64_t summary, size_t at, int head) const {
    const PagedKv& cpu = cpu_kv_.view();
    const double c_end = cpu.page_cum_log_f[summary] +
                         static_cast<double>(cpu.LogFOffsets<float>(summary)[kPageTokens - 1]);
    const double by_gates = kGateError * std::abs(c_end) + 1e-5;
    const double tolerance = KeyError() * LargestBound(head) + by_gates;
    EXPECT_LE(std::abs(log_mass_bound_[at] - cpu.log_mass_bound[summary]),
              setup_.acp == AcpMode::kPaper ? by_gates : tolerance)
        << "log_mass_bound";
    if (setup_.acp != AcpMode::kCertified) return;
    // The device adds its keys in float32 and pays 2^-20 of the largest product for it.
    EXPECT_LE(std::abs(log_denominator_bound_[at] - cpu.log_denominator_bound[summary]),
              tolerance + 0x1p-20 * kMaxNormProduct)
        << "log_denominator_bound";
  }

  void CompareState(int slot, int head) {
    const PagedKv& cpu = cpu_kv_.view();
    const int64_t state = cpu.HeadIndex(slot, kLayer, head);
    const auto at = static_cast<size_t>(state);
    const double c = cpu.cum_log_f[state];
    EXPECT_LE(std::abs(kv_.cum_log_f.ToHost()[at] - c), kGateError * std::abs(c)) << "c";
    const double mass = cpu.log_mass[state], count = cpu.decay_sum[state];
    const double tolerance = KeyError() * LargestBound(head) + kGateError * std::abs(c) + 1e-5;
    const double log_mass = kv_.log_mass.ToHost()[at];
    EXPECT_TRUE(log_mass == mass || std::abs(log_mass - mass) <= tolerance)
        << "log M " << log_mass << ", not " << mass;
    // Weights are exp of differences of two local gates.
    const double by_weights = 2 * kGateError * largest_local_ + 1e-5;
    EXPECT_LE(std::abs(kv_.decay_sum.ToHost()[at] - count), by_weights * count);
    const std::vector<double> sums = kv_.key_sum.ToHost();
    for (int m = 0; m < shape_.head_dim; ++m) {
      const int64_t i = state * shape_.head_dim + m;
      EXPECT_LE(std::abs(sums[static_cast<size_t>(i)] - cpu.key_sum[i]),
                (KeyError() + by_weights) * largest_key_ * count)
          << "N " << m;
    }
  }

  void CompareLastRows(int slot) {
    if (!setup_.shift || lengths_[static_cast<size_t>(slot)] == 0) return;
    const PagedKv& cpu = cpu_kv_.view();
    const int64_t first = cpu.ListIndex(slot, kLayer, 0) * shape_.head_dim;
    const auto compare = [&](const DeviceArray<float>& rows, const void* expected) {
      const std::vector<float> got = rows.ToHost();
      for (int64_t i = first; i < first + shape_.kv_size(); ++i) {
        EXPECT_EQ(got[static_cast<size_t>(i)], static_cast<const float*>(expected)[i]) << i;
      }
    };
    compare(kv_.last_k, cpu.last_k);
    compare(kv_.last_v, cpu.last_v);
    if (lengths_[static_cast<size_t>(slot)] < kPageTokens) return;
    compare(kv_.page_end_k, cpu.page_end_k);
    compare(kv_.page_end_v, cpu.page_end_v);
  }

  const AppendSetup setup_;
  std::mt19937_64 rng_;
  CpuOps cpu_;
  const PagedKvShape shape_;
  PagedKvStorage cpu_kv_;
  DeviceKv kv_;
  std::vector<int64_t> lengths_;
  double largest_key_ = 0, largest_local_ = 0;

  AppendParams params_, cpu_params_, gpu_params_;
  int64_t stride_ = 0;
  std::vector<float> q_norm_, k_norm_, q_cap_, k_cap_, gate_bias_, diagonal_, dense_, linear_,
      absolute_;
  std::vector<double> frequency_, max_logit_bound_, max_norm_product_;
  DeviceMemory memory_;

  std::vector<uint16_t> keys_, values_;
  std::vector<float> local_;
  std::vector<double> base_, log_mass_bound_, log_denominator_bound_;
  std::vector<int32_t> table_;
};

class AppendTest : public ::testing::TestWithParam<AppendSetup> {};

// Prompts in one step, then tokens one by one across page ends, then chunks of all kinds.
TEST_P(AppendTest, MatchesTheCpu) {
  AppendPair pair(GetParam(), 4, 800);
  pair.Step({63, 1, 129, 0});
  pair.Compare();
  for (int i = 0; i < 70; ++i) pair.Step({1, 1, 1, i % 2}, i % 3 == 0);
  pair.Compare();
  pair.Step({64, 1, 200, 127}, true);
  pair.Step({1, 65, 2, 128});
  pair.Step({57, 30, 1, 300});
  pair.Compare();
}

std::vector<AppendSetup> Setups() {
  std::vector<AppendSetup> setups = {{},
                                     {.bound = Bound::kDense},
                                     {.bound = Bound::kAll},
                                     {.shift = true, .norm = true, .rope = true, .gate_bias = true},
                                     {.shift = true, .norm = true, .seed = 2},
                                     {.rope = true, .bound = Bound::kDense},
                                     {.norm = true, .rope = true, .seed = 4},
                                     {.rope = true, .caps = true, .seed = 6},
                                     {.norm = true, .acp = AcpMode::kPaper},
                                     {.bound = Bound::kAll, .acp = AcpMode::kPaper},
                                     {.shift = true, .acp = AcpMode::kOff},
                                     {.shift = true, .caps = true},
                                     {.gate_bias = true, .gate_mean = -60},  // strong gates
                                     {.gate_mean = 14}};                     // open ones
  for (const int head_dim : {16, 32, 64, 128}) {
    AppendSetup copied{.head_dim = head_dim, .q_heads = 10, .kv_heads = 2, .bound = Bound::kAll};
    AppendSetup computed{head_dim, 10, 2, true, true, true};
    AppendSetup capped{head_dim, 9, 3, false, false, true, true};
    AppendSetup one_head{.head_dim = head_dim, .q_heads = 1, .kv_heads = 1, .seed = 3};
    setups.insert(setups.end(), {copied, computed, capped, one_head});
  }
  return setups;
}

INSTANTIATE_TEST_SUITE_P(Setups, AppendTest, ::testing::ValuesIn(Setups()));

// More blocks of a sequence than a warp has lanes.
TEST(AppendStepsTest, LongChunks) {
  for (const bool computed : {false, true}) {
    AppendPair pair({.q_heads = 4, .kv_heads = 2, .shift = computed, .norm = computed}, 2, 6000);
    pair.Step({30, 2048});
    pair.Step({2500, 1});
    pair.Step({3000, 3000});
    pair.Compare();
  }
}

TEST(AppendStepsTest, ManySequences) {
  const int slots = 200;
  AppendPair pair({.head_dim = 16, .q_heads = 5, .kv_heads = 5, .norm = true}, slots, 200);
  std::vector<int64_t> prompts, tokens(slots, 1);
  for (int i = 0; i < slots; ++i) prompts.push_back(1 + i % 130);
  pair.Step(prompts, true);
  for (int i = 0; i < 3; ++i) pair.Step(tokens, i % 2 == 1);
  pair.Compare();
}

// Angles of a million radians keep their digits.
TEST(AppendStepsTest, RotationFarOut) {
  const int64_t start = int64_t{kPageTokens} * 15625;
  AppendPair pair({.rope = true, .acp = AcpMode::kOff}, 1, start + 400);
  pair.StartAt(0, start);
  pair.Step({100});
  pair.Step({1});
  pair.Step({130});
  pair.Compare();
}
}  // namespace
}  // namespace fox::cuda::testing
