// The cases, the device's copy of their inputs, and the comparison. See dense_cases.h.
#include "tests/kernels/cuda/attention/prefill/dense_cases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/core/dtype.h"
#include "kernels/cpu/dense_attention.h"
#include "kernels/cuda/attention/dense/schedule.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda::testing {
namespace {

using fox::testing::BatchCase;
using fox::testing::DenseArray;
using fox::testing::DenseCase;
using fox::testing::DenseInputs;
using fox::testing::PackedCase;

constexpr uint16_t kPoisonBits = 0xffff;
constexpr double kLogEps = -10;
constexpr double kLog2E = 1.4426950408889634;

DensePrefillCase Edges(int head_dim) {
  DenseCase shape = PackedCase({1, 63, 64, 0, 65, 127, 128, 1, 129, 2, 700, 191, 193});
  shape.head_dim = head_dim;
  return {"Edges", shape};
}

// Sequences that begin and end anywhere in their row, one not at all; heads before tokens.
DensePrefillCase Batch(int head_dim) {
  DenseCase shape;
  shape.head_dim = head_dim;
  shape.q_heads = 6;
  shape.sequences = {{3, 200}, {0, 512}, {100, 100}, {511, 512}, {64, 257}};
  shape.tokens = 520;
  shape.head_first = true;
  shape.padding = 8;
  return {"Batch", shape};
}

DensePrefillCase OneHead(int head_dim) {
  DenseCase shape = BatchCase({300});
  shape.head_dim = head_dim;
  shape.q_heads = shape.kv_heads = 1;
  shape.gate_means = {2};
  shape.padding = 24;
  return {"OneHead", shape};
}

// Logits that outgrow the maximum of the diagonal tile, far keys above all.
DensePrefillCase LargeLogits(int head_dim) {
  DenseCase shape = PackedCase({1000, 400});
  shape.head_dim = head_dim;
  shape.gate_means = {9, 12};
  DensePrefillCase c{"LargeLogits", shape};
  c.scale = 0.5;
  return c;
}

DensePrefillCase StrongGates(int head_dim) {
  DenseCase shape = PackedCase({500, 777});
  shape.head_dim = head_dim;
  shape.gate_means = {5, -30};
  DensePrefillCase c{"StrongGates", shape};
  c.strong_gate_every = 37;
  return c;
}

DensePrefillCase RandomPages(int head_dim) {
  DenseCase shape = PackedCase({1500, 64, 333, 1024, 65});
  shape.head_dim = head_dim;
  shape.q_heads = 4;
  shape.gate_means = {9, 3};
  DensePrefillCase c{"RandomPages", shape};
  c.random_pages = true;
  return c;
}

// Local and global heads; more work tiles than a device has multiprocessors.
DensePrefillCase Pruned(AcpMode acp, int head_dim) {
  DenseCase shape = PackedCase({2500, 130, 1300});
  shape.head_dim = head_dim;
  shape.q_heads = 10;
  shape.gate_means = {0, 1, 2, 4, 9};
  DensePrefillCase c{acp == AcpMode::kPaper ? "Paper" : "Certified", shape};
  c.acp = acp;
  return c;
}

DenseInputs MakeInputs(const DensePrefillCase& c) {
  DenseInputs inputs(c.shape);
  if (c.scale > 0) inputs.scale = c.scale;
  std::vector<bool> used(static_cast<size_t>(inputs.batch * inputs.tokens), false);
  for (int s = 0; s < inputs.num_seqs(); ++s) {
    for (int i = 0; i < inputs.length(s); ++i) {
      const int token = inputs.begin[static_cast<size_t>(s)] + i;
      used[static_cast<size_t>(inputs.BatchOf(s) * inputs.tokens + token)] = true;
      for (int h = 0; h < c.shape.q_heads && c.strong_gate_every > 0; ++h) {
        if ((i + h) % c.strong_gate_every == 5) {
          inputs.log_fgate.At(inputs.BatchOf(s), token, h) = -100;
        }
      }
    }
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (int b = 0; b < inputs.batch; ++b) {
    for (int t = 0; t < inputs.tokens; ++t) {
      if (used[static_cast<size_t>(b * inputs.tokens + t)]) continue;
      for (int h = 0; h < c.shape.q_heads; ++h) {
        inputs.log_fgate.At(b, t, h) = kNan;
        for (int m = 0; m < c.shape.head_dim; ++m) inputs.q.At(b, t, h, m) = kNan;
      }
      for (int h = 0; h < c.shape.kv_heads; ++h) {
        for (int m = 0; m < c.shape.head_dim; ++m) {
          inputs.k.At(b, t, h, m) = inputs.v.At(b, t, h, m) = kNan;
        }
      }
    }
  }
  return inputs;
}

std::vector<uint16_t> ToBf16(const std::vector<double>& values) {
  std::vector<uint16_t> bits;
  bits.reserve(values.size());
  for (const double x : values) {
    bits.push_back(std::bit_cast<uint16_t>(BFloat16(static_cast<float>(x))));
  }
  return bits;
}

double Widened(uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}

// The device's copy of a case, and what a run leaves there.
class DenseRun {
 public:
  DenseRun(DenseInputs& inputs, const DensePrefillCase& c)
      : q_(ToBf16(inputs.q.values)),
        k_(ToBf16(inputs.k.values)),
        v_(ToBf16(inputs.v.values)),
        out_(inputs.out.values.size()),
        log_fgate_(
            std::vector<float>(inputs.log_fgate.values.begin(), inputs.log_fgate.values.end())),
        threshold_(inputs.PaperThresholds(kLogEps)),
        max_query_norm_(inputs.MaxQueryNorms()),
        begin_(inputs.begin),
        end_(inputs.end) {
    params = inputs.params();
    params.seqs.begin = begin_.data();
    params.seqs.end = end_.data();
    params.q.data = q_.data();
    params.k.data = k_.data();
    params.v.data = v_.data();
    params.out.data = out_.data();
    params.log_fgate.data = log_fgate_.data();
    params.acp = c.acp;
    params.threshold = threshold_.data();
    params.max_query_norm = max_query_norm_.data();
    params.log_eps = kLogEps;
    memory_ = DeviceArray<uint8_t>(DenseStateBytes(params));
    state = MakeDenseState(params, memory_.data());
  }

  void Run(DensePrefillKernel kernel, const DensePrefillCase& c) {
    out_.Fill(kPoison);
    memory_.Fill(kPoison);
    ASSERT_EQ(ScheduleDense(params, state, nullptr), cudaSuccess);
    ReadSchedule();
    if (c.random_pages) SetRandomPages();
    ASSERT_EQ(kernel(params, state, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    out = out_.ToHost();
    lse = Read(state.lse, Rows() * kDenseTile);
  }

  size_t Rows() const {
    return static_cast<size_t>(params.q_heads) * static_cast<size_t>(state.max_tiles);
  }

  DenseAttentionParams params;
  DenseState state;
  std::vector<DenseTile> tiles;
  std::vector<int32_t> first_page;  // [q_heads][max_tiles]
  std::vector<uint16_t> out;
  std::vector<float> lse;

 private:
  template <typename T>
  static std::vector<T> Read(const T* from, size_t count) {
    std::vector<T> host(count);
    EXPECT_EQ(cudaMemcpy(host.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

  void ReadSchedule() {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    tiles = Read(state.tiles, static_cast<size_t>(Read(state.num_tiles, 1)[0]));
    first_page = Read(state.first_page, Rows());
  }

  // Not falling along a sequence.
  void SetRandomPages() {
    std::mt19937_64 random(1);
    for (int h = 0; h < params.q_heads; ++h) {
      int least = 0;
      for (size_t t = 0; t < tiles.size(); ++t) {
        if (tiles[t].position == 0) least = 0;
        const int own = tiles[t].position / kDensePage;
        if (random() % 2 == 0) {
          least = std::uniform_int_distribution<int>(least, std::max(least, own))(random);
        }
        first_page[static_cast<size_t>(h * state.max_tiles) + t] = least;
      }
    }
    ASSERT_EQ(cudaMemcpy(state.first_page, first_page.data(), first_page.size() * sizeof(int32_t),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  DeviceArray<uint16_t> q_, k_, v_, out_;
  DeviceArray<float> log_fgate_, threshold_, max_query_norm_;
  DeviceArray<int32_t> begin_, end_;
  DeviceArray<uint8_t> memory_;
};

// Float64 results for what a run has seen, and the error that a correct kernel may make, as in
// device_cache_oracle.cc: all to first order and with a factor of two or more to spare.
//   weight j, relative:  its product, added in float32: 2^-19 |q||k| scale; the gates, relative to
//                        the row tile's first token and to key tiles' bases, rounded a few times:
//                        2^-21 (|c_ref - c_j| + |c_j - base| + 1); exp2: 2^-21
//   sums over j:         an addition and a rescaling a page: 2^-21 pages
//   weight j, in out:    bf16: 2^-8;  out: bf16: 2^-8 of what is stored
class Exact {
 public:
  Exact(const DenseInputs& inputs, const DenseRun& run)
      : inputs_(inputs),
        exact_(inputs),
        absolute_(inputs),
        c_(inputs.num_rows()),
        lse_(inputs.num_rows()) {
    const std::vector<int32_t> first_key = FirstKeys(run);
    DenseCumulativeGates(exact_.params(), c_.data());
    DenseForwardFloat64(exact_.params(), first_key.data(), lse_.data());
    for (double& x : absolute_.v.values) x = std::abs(x);
    DenseForwardFloat64(absolute_.params(), first_key.data());
    max_logit_ = MaxNorm(inputs.q) * MaxNorm(inputs.k) * inputs.scale;
  }

  // All of one row: whether it is right.
  bool CheckRow(const DenseTile& tile, int first_page, int head, int row, const DenseRun& run,
                float lse) const {
    const double error = WeightError(tile, first_page, head, row);
    const int token = tile.first_token + row;
    for (int m = 0; m < inputs_.shape.head_dim; ++m) {
      const double o = exact_.out.At(tile.batch, token, head, m);
      const double absolute = absolute_.out.At(tile.batch, token, head, m);
      const double before = error * (absolute + std::abs(o)) + 0x1p-8 * absolute;
      const double tolerance = before + 0x1p-8 * (std::abs(o) + before) + 1e-30;
      const auto at = static_cast<size_t>(&exact_.out.At(tile.batch, token, head, m) -
                                          exact_.out.values.data());
      const double got = Widened(run.out[at]);
      if (std::abs(got - o) <= tolerance) continue;  // false for NaN
      ADD_FAILURE() << "sequence " << tile.seq << " row " << tile.position + row << " head " << head
                    << " dim " << m << ": " << got << ", not " << o << " +- " << tolerance;
      return false;
    }
    const double log_sum =
        kLog2E * (lse_[Index(tile, head, row)] - C(tile, head, row) + C(tile, head, 0));
    const double tolerance = kLog2E * error + 0x1p-21 * (std::abs(log_sum) + 1);
    if (std::abs(lse - log_sum) <= tolerance) return true;
    ADD_FAILURE() << "sequence " << tile.seq << " row " << tile.position + row << " head " << head
                  << ": log sum " << lse << ", not " << log_sum << " +- " << tolerance;
    return false;
  }

 private:
  std::vector<int32_t> FirstKeys(const DenseRun& run) const {
    std::vector<int32_t> first_key(inputs_.num_rows(), 0);
    for (size_t t = 0; t < run.tiles.size(); ++t) {
      for (int h = 0; h < inputs_.shape.q_heads; ++h) {
        const int page = run.first_page[static_cast<size_t>(h * run.state.max_tiles) + t];
        for (int r = 0; r < run.tiles[t].count; ++r) {
          first_key[Index(run.tiles[t], h, r)] = page * kDensePage;
        }
      }
    }
    return first_key;
  }

  size_t Index(const DenseTile& tile, int head, int row) const {
    return inputs_.RowIndex(tile.seq, tile.position + row, head);
  }
  double C(const DenseTile& tile, int head, int row) const { return c_[Index(tile, head, row)]; }

  double MaxNorm(const DenseArray<double>& array) const {
    double largest = 0;
    const int d = inputs_.shape.head_dim;
    const int heads = &array == &inputs_.q ? inputs_.shape.q_heads : inputs_.shape.kv_heads;
    for (int s = 0; s < inputs_.num_seqs(); ++s) {
      for (int i = 0; i < inputs_.length(s); ++i) {
        for (int h = 0; h < heads; ++h) {
          const double* x =
              &array.At(inputs_.BatchOf(s), inputs_.begin[static_cast<size_t>(s)] + i, h);
          double square = 0;
          for (int m = 0; m < d; ++m) square += x[m] * x[m];
          largest = std::max(largest, square);
        }
      }
    }
    return std::sqrt(largest);
  }

  // Of keys that weigh less than e^-60 of the row's own, no error matters.
  double WeightError(const DenseTile& tile, int first_page, int head, int row) const {
    const int i = tile.position + row, first = first_page * kDensePage;
    const double reference = C(tile, head, 0), own = C(tile, head, row);
    double gate = 0;
    for (int j = i; j >= first; --j) {
      const double c = c_[inputs_.RowIndex(tile.seq, j, head)];
      if (own - c < -60 - 2 * max_logit_) break;
      const int before = j / kDenseTile * kDenseTile - 1;
      const double base = before < 0 ? 0 : c_[inputs_.RowIndex(tile.seq, before, head)];
      gate = std::max(gate, std::abs(reference - c) + std::abs(c - base));
    }
    const int pages = i / kDensePage + 1 - first_page;
    return 0x1p-19 * max_logit_ + 0x1p-21 * (gate + 2 + pages);
  }

  const DenseInputs& inputs_;
  DenseInputs exact_, absolute_;
  std::vector<double> c_, lse_;
  double max_logit_ = 0;
};

void CheckOutputs(const DenseInputs& inputs, const DenseRun& run) {
  const Exact exact(inputs, run);
  std::vector<bool> written(run.out.size(), false);
  const int d = inputs.shape.head_dim;
  int wrong = 0;
  for (size_t t = 0; t < run.tiles.size(); ++t) {
    const DenseTile& tile = run.tiles[t];
    for (int h = 0; h < inputs.shape.q_heads && wrong < 5; ++h) {
      const size_t index = static_cast<size_t>(h * run.state.max_tiles) + t;
      for (int r = 0; r < kDenseTile && wrong < 5; ++r) {
        const float lse = run.lse[index * kDenseTile + static_cast<size_t>(r)];
        if (r >= tile.count) {
          ASSERT_EQ(lse, std::numeric_limits<float>::infinity()) << "tile " << t << " row " << r;
          continue;
        }
        if (!exact.CheckRow(tile, run.first_page[index], h, r, run, lse)) ++wrong;
        const auto at = static_cast<size_t>(&inputs.out.At(tile.batch, tile.first_token + r, h) -
                                            inputs.out.values.data());
        std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(at), d, true);
      }
    }
  }
  if (wrong > 0) return;
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i]) continue;
    ASSERT_EQ(run.out[i], kPoisonBits) << "of no sequence, element " << i;
  }
}

}  // namespace

std::vector<DensePrefillCase> DensePrefillCases() {
  std::vector<DensePrefillCase> cases;
  for (const int d : {32, 64, 128}) {
    for (DensePrefillCase c :
         {Edges(d), Batch(d), OneHead(d), LargeLogits(d), StrongGates(d), RandomPages(d),
          Pruned(AcpMode::kPaper, d), Pruned(AcpMode::kCertified, d)}) {
      c.name += std::to_string(d);
      c.shape.seed = static_cast<uint64_t>(d) + cases.size();
      cases.push_back(c);
    }
  }
  return cases;
}

void ExpectDensePrefill(DensePrefillKernel kernel, const DensePrefillCase& c) {
  DenseInputs inputs = MakeInputs(c);
  DenseRun run(inputs, c);
  ASSERT_NO_FATAL_FAILURE(run.Run(kernel, c));
  int64_t tokens = 0, expected = 0;
  for (const DenseTile& tile : run.tiles) tokens += tile.count;
  for (int s = 0; s < inputs.num_seqs(); ++s) expected += inputs.length(s);
  ASSERT_EQ(tokens, expected);
  if (c.acp != AcpMode::kOff || c.random_pages) {
    EXPECT_GT(*std::max_element(run.first_page.begin(), run.first_page.end()), 8);
  }
  CheckOutputs(inputs, run);

  const std::vector<uint16_t> out = run.out;
  const std::vector<float> lse = run.lse;
  ASSERT_NO_FATAL_FAILURE(run.Run(kernel, c));
  EXPECT_EQ(run.out, out);
  for (size_t t = 0; t < run.tiles.size(); ++t) {
    for (int h = 0; h < c.shape.q_heads; ++h) {
      const auto at = static_cast<std::ptrdiff_t>(
          (static_cast<size_t>(h * run.state.max_tiles) + t) * kDenseTile);
      ASSERT_TRUE(
          std::equal(lse.begin() + at, lse.begin() + at + kDenseTile, run.lse.begin() + at));
    }
  }
}

}  // namespace fox::cuda::testing
