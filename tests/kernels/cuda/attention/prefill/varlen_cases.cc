// The cases, the device's copy of their inputs, and the comparison. See varlen_cases.h.
#include "tests/kernels/cuda/attention/prefill/varlen_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/kernels/cuda/attention/varlen/device_varlen.h"
#include "tests/kernels/varlen_oracle.h"

namespace fox::cuda::testing {
namespace {

using fox::testing::BatchCase;
using fox::testing::PackedCase;
using fox::testing::VarlenCase;

constexpr double kLog2E = 1.4426950408889634;

VarlenPrefillCase Edges(int head_dim) {
  VarlenCase shape = PackedCase({1, 63, 64, 0, 65, 127, 128, 1, 129, 2, 700, 191, 193});
  shape.head_dim = head_dim;
  return {"Edges", shape};
}

// Sequences that begin and end anywhere in their row, one not at all; heads before tokens.
VarlenPrefillCase Batch(int head_dim) {
  VarlenCase shape;
  shape.head_dim = head_dim;
  shape.q_heads = 6;
  shape.sequences = {{3, 200}, {0, 512}, {100, 100}, {511, 512}, {64, 257}};
  shape.tokens = 520;
  shape.head_first = true;
  shape.padding = 8;
  return {"Batch", shape};
}

VarlenPrefillCase OneHead(int head_dim) {
  VarlenCase shape = BatchCase({300});
  shape.head_dim = head_dim;
  shape.q_heads = shape.kv_heads = 1;
  shape.gate_means = {2};
  shape.padding = 24;
  return {"OneHead", shape};
}

// Logits that outgrow the maximum of the diagonal tile, far keys above all.
VarlenPrefillCase LargeLogits(int head_dim) {
  VarlenCase shape = PackedCase({1000, 400});
  shape.head_dim = head_dim;
  shape.gate_means = {9, 12};
  VarlenPrefillCase c{"LargeLogits", shape};
  c.scale = 0.5;
  return c;
}

VarlenPrefillCase StrongGates(int head_dim) {
  VarlenCase shape = PackedCase({500, 777});
  shape.head_dim = head_dim;
  shape.gate_means = {5, -30};
  VarlenPrefillCase c{"StrongGates", shape};
  c.strong_gate_every = 37;
  return c;
}

VarlenPrefillCase RandomPages(int head_dim) {
  VarlenCase shape = PackedCase({1500, 64, 333, 1024, 65});
  shape.head_dim = head_dim;
  shape.q_heads = 4;
  shape.gate_means = {9, 3};
  VarlenPrefillCase c{"RandomPages", shape};
  c.random_pages = true;
  return c;
}

// Local and global heads; more work tiles than a device has multiprocessors.
VarlenPrefillCase Pruned(AcpMode acp, int head_dim) {
  VarlenCase shape = PackedCase({2500, 130, 1300});
  shape.head_dim = head_dim;
  shape.q_heads = 10;
  shape.gate_means = {0, 1, 2, 4, 9};
  VarlenPrefillCase c{acp == AcpMode::kPaper ? "Paper" : "Certified", shape};
  c.acp = acp;
  return c;
}

VarlenInputs MakeInputs(const VarlenPrefillCase& c) {
  VarlenInputs inputs(c.shape);
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

// What a run has left on the host.
struct VarlenRun {
  HostState state;
  int max_tiles = 0;
  VarlenArray<double> out;
  std::vector<int32_t> first_key;

  size_t Index(int head, size_t tile) const { return static_cast<size_t>(head * max_tiles) + tile; }
};

// Any first pages that do not fall along a sequence.
std::vector<int32_t> SomeFirstPages(const DeviceVarlen& device, int q_heads) {
  HostState state = device.ToHost();
  std::mt19937_64 random(1);
  for (int h = 0; h < q_heads; ++h) {
    int page = 0;
    for (int t = 0; t < state.num_tiles; ++t) {
      const int position = state.tiles[static_cast<size_t>(t)].position;
      if (position == 0) page = 0;
      if (random() % 2 == 0) {
        page = std::uniform_int_distribution<int>(page, position / kVarlenPage)(random);
      }
      state.first_page[static_cast<size_t>(h * device.state().max_tiles + t)] = page;
    }
  }
  return state.first_page;
}

void Run(VarlenPrefillKernel kernel, const VarlenPrefillCase& c, DeviceVarlen& device,
         VarlenRun& run) {
  ASSERT_NO_FATAL_FAILURE(device.Schedule());
  if (c.random_pages) device.SetFirstPage(SomeFirstPages(device, c.shape.q_heads));
  device.PoisonOutputs();
  ASSERT_EQ(kernel(device.params(), device.state(), nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  run.state = device.ToHost();
  run.max_tiles = device.state().max_tiles;
  run.out = device.Out();
  run.first_key = device.FirstKeys();
}

// Float64 results for what a run has seen, and the error that a correct kernel may make, as in
// device_cache_oracle.cc: all to first order and with a factor of two or more to spare.
//   weight j, relative:  its product, added in float32: 2^-19 |q||k| scale; the gates, relative to
//                        the row tile's first token and to key tiles' bases, rounded a few times:
//                        2^-21 (|c_ref - c_j| + |c_j - base| + 1); exp2: 2^-21
//   sums over j:         an addition and a rescaling a page: 2^-21 pages
//   weight j, in out:    bf16: 2^-8;  out: bf16: 2^-8 of what is stored
//   sum over j, as a sum: sum_rounding
class Exact {
 public:
  Exact(const VarlenInputs& inputs, const VarlenRun& run, double sum_rounding)
      : inputs_(inputs),
        sum_rounding_(sum_rounding),
        exact_(inputs),
        absolute_(inputs),
        c_(inputs.num_rows()),
        lse_(inputs.num_rows()) {
    VarlenCumulativeGates(exact_.params(), c_.data());
    VarlenForwardFloat64(exact_.params(), run.first_key.data(), lse_.data());
    for (double& x : absolute_.v.values) x = std::abs(x);
    VarlenForwardFloat64(absolute_.params(), run.first_key.data());
    max_logit_ = MaxNorm(inputs.q) * MaxNorm(inputs.k) * inputs.scale;
  }

  // All of one row: whether it is right.
  bool CheckRow(const VarlenTile& tile, int first_page, int head, int row, const VarlenRun& run,
                float lse) const {
    const double error = WeightError(tile, first_page, head, row);
    const int token = tile.first_token + row;
    for (int m = 0; m < inputs_.shape.head_dim; ++m) {
      const double o = exact_.out.At(tile.batch, token, head, m);
      const double absolute = absolute_.out.At(tile.batch, token, head, m);
      const double before =
          error * absolute + (error + sum_rounding_) * std::abs(o) + 0x1p-8 * absolute;
      const double tolerance = before + 0x1p-8 * (std::abs(o) + before) + 1e-30;
      const double got = run.out.At(tile.batch, token, head, m);
      if (std::abs(got - o) <= tolerance) continue;  // false for NaN
      ADD_FAILURE() << "sequence " << tile.seq << " row " << tile.position + row << " head " << head
                    << " dim " << m << ": " << got << ", not " << o << " +- " << tolerance;
      return false;
    }
    const double log_sum =
        kLog2E * (lse_[Index(tile, head, row)] - C(tile, head, row) + C(tile, head, 0));
    const double tolerance = kLog2E * (error + sum_rounding_) + 0x1p-21 * (std::abs(log_sum) + 1);
    if (std::abs(lse - log_sum) <= tolerance) return true;
    ADD_FAILURE() << "sequence " << tile.seq << " row " << tile.position + row << " head " << head
                  << ": log sum " << lse << ", not " << log_sum << " +- " << tolerance;
    return false;
  }

 private:
  size_t Index(const VarlenTile& tile, int head, int row) const {
    return inputs_.RowIndex(tile.seq, tile.position + row, head);
  }
  double C(const VarlenTile& tile, int head, int row) const { return c_[Index(tile, head, row)]; }

  double MaxNorm(const VarlenArray<double>& array) const {
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
  double WeightError(const VarlenTile& tile, int first_page, int head, int row) const {
    const int i = tile.position + row, first = first_page * kVarlenPage;
    const double reference = C(tile, head, 0), own = C(tile, head, row);
    double gate = 0;
    for (int j = i; j >= first; --j) {
      const double c = c_[inputs_.RowIndex(tile.seq, j, head)];
      if (own - c < -60 - 2 * max_logit_) break;
      const int before = j / kVarlenTile * kVarlenTile - 1;
      const double base = before < 0 ? 0 : c_[inputs_.RowIndex(tile.seq, before, head)];
      gate = std::max(gate, std::abs(reference - c) + std::abs(c - base));
    }
    const int pages = i / kVarlenPage + 1 - first_page;
    return 0x1p-19 * max_logit_ + 0x1p-21 * (gate + 2 + pages);
  }

  const VarlenInputs& inputs_;
  const double sum_rounding_;
  VarlenInputs exact_, absolute_;
  std::vector<double> c_, lse_;
  double max_logit_ = 0;
};

void CheckOutputs(const VarlenInputs& inputs, VarlenRun& run, double sum_rounding) {
  const Exact exact(inputs, run, sum_rounding);
  int wrong = 0;
  for (size_t t = 0; t < run.state.tiles.size(); ++t) {
    const VarlenTile& tile = run.state.tiles[t];
    for (int h = 0; h < inputs.shape.q_heads; ++h) {
      const size_t index = run.Index(h, t);
      for (int r = 0; r < kVarlenTile; ++r) {
        const float lse = run.state.lse[index * kVarlenTile + static_cast<size_t>(r)];
        if (r >= tile.count) {
          ASSERT_EQ(lse, std::numeric_limits<float>::infinity()) << "tile " << t << " row " << r;
          continue;
        }
        if (!exact.CheckRow(tile, run.state.first_page[index], h, r, run, lse)) ++wrong;
        ASSERT_LT(wrong, 5);
        // Seen: what is left must be untouched.
        double* row = &run.out.At(tile.batch, tile.first_token + r, h);
        std::fill_n(row, inputs.shape.head_dim, std::numeric_limits<double>::quiet_NaN());
      }
    }
  }
  EXPECT_TRUE(std::all_of(run.out.values.begin(), run.out.values.end(), [](double x) {
    return std::isnan(x);
  })) << "wrote to tokens of no sequence, or between rows";
}

}  // namespace

std::vector<VarlenPrefillCase> VarlenPrefillCases() {
  std::vector<VarlenPrefillCase> cases;
  for (const int d : {32, 64, 128}) {
    for (VarlenPrefillCase c :
         {Edges(d), Batch(d), OneHead(d), LargeLogits(d), StrongGates(d), RandomPages(d),
          Pruned(AcpMode::kPaper, d), Pruned(AcpMode::kCertified, d)}) {
      c.name += std::to_string(d);
      c.shape.seed = static_cast<uint64_t>(d) + cases.size();
      cases.push_back(c);
    }
  }
  return cases;
}

void ExpectVarlenPrefill(VarlenPrefillKernel kernel, const VarlenPrefillCase& c,
                         double sum_rounding) {
  VarlenInputs inputs = MakeInputs(c);
  DeviceVarlen device(inputs, c.acp);
  VarlenRun run, again;
  ASSERT_NO_FATAL_FAILURE(Run(kernel, c, device, run));
  ASSERT_NO_FATAL_FAILURE(Run(kernel, c, device, again));
  const std::vector<VarlenTile>& tiles = run.state.tiles;
  int64_t tokens = 0, expected = 0;
  for (const VarlenTile& tile : tiles) tokens += tile.count;
  for (int s = 0; s < inputs.num_seqs(); ++s) expected += inputs.length(s);
  ASSERT_EQ(tokens, expected);
  int last = 0;
  for (size_t t = 0; t < tiles.size(); ++t) {
    for (int h = 0; h < c.shape.q_heads; ++h) {
      const size_t index = run.Index(h, t);
      last = std::max(last, run.state.first_page[index]);
      const auto row = static_cast<std::ptrdiff_t>(index * kVarlenTile);
      ASSERT_TRUE(std::equal(run.state.lse.begin() + row, run.state.lse.begin() + row + kVarlenTile,
                             again.state.lse.begin() + row));
    }
  }
  EXPECT_EQ(last > 8, c.acp != AcpMode::kOff || c.random_pages) << last;
  ASSERT_EQ(std::memcmp(run.out.values.data(), again.out.values.data(),
                        run.out.values.size() * sizeof(double)),
            0);
  CheckOutputs(inputs, run, sum_rounding);
}

}  // namespace fox::cuda::testing
