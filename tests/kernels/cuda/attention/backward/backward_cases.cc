// The cases, a run of the kernel between its neighbours, and what is compared. See
// backward_cases.h.
#include "tests/kernels/cuda/attention/backward/backward_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "kernels/cuda/attention/varlen/kernels.h"
#include "tests/kernels/cuda/attention/backward/backward_oracle.h"
#include "tests/kernels/cuda/attention/varlen/device_varlen.h"

namespace fox::cuda::testing {
namespace {

using fox::testing::BatchCase;
using fox::testing::PackedCase;
using fox::testing::RelativeError;
using fox::testing::VarlenCase;

VarlenCase WithHeads(VarlenCase shape, int q_heads, int kv_heads, std::vector<double> gate_means) {
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.gate_means = std::move(gate_means);
  return shape;
}

BackwardCase Edges() {
  return {"Edges",
          WithHeads(PackedCase({1, 63, 64, 0, 65, 127, 128, 1, 129, 2, 300}), 2, 2, {1, 5})};
}

// A batch row each, one without tokens; a local head and a global one share their keys.
BackwardCase Batch() {
  BackwardCase c{"Batch", WithHeads(BatchCase({300, 0, 129, 64, 1}), 4, 2, {0, 9, 3, 5})};
  c.shape.padding = 8;
  return c;
}

// Sequences that begin and end anywhere in their row; heads before tokens.
BackwardCase HeadFirst() {
  BackwardCase c{"HeadFirst", WithHeads({}, 6, 2, {2, 5, 0, 8})};
  c.shape.sequences = {{3, 200}, {0, 400}, {100, 100}, {511, 512}, {64, 257}};
  c.shape.tokens = 520;
  c.shape.head_first = true;
  c.shape.padding = 16;
  return c;
}

BackwardCase PackedGroupsOfThree() {
  BackwardCase c{"PackedGroupsOfThree", WithHeads(PackedCase({200, 127, 0, 65}), 3, 1, {5, 1, 3})};
  c.shape.tokens = 500;
  c.shape.head_first = true;
  return c;
}

BackwardCase OneHead() { return {"OneHead", WithHeads(BatchCase({1000}), 1, 1, {4})}; }

// Gates that forget nothing, or next to nothing.
BackwardCase OpenGates() {
  return {"OpenGates", WithHeads(PackedCase({500, 300}), 2, 2, {30, 14})};
}

BackwardCase StrongGates(const std::string& name, double rate) {
  BackwardCase c{name, WithHeads(PackedCase({400, 300}), 2, 2, {5, 2})};
  c.strong_gate_rate = rate;
  return c;
}

// Weights follow the gates alone, and dq is zero but for rounding.
BackwardCase EqualKeys() {
  BackwardCase c{"EqualKeys", WithHeads(BatchCase({300, 130}), 2, 1, {3, 9})};
  c.equal_keys = true;
  return c;
}

BackwardCase Paper() {
  BackwardCase c{"Paper", WithHeads(PackedCase({1000, 129, 700}), 4, 2, {-1, 0, 1, 9})};
  c.acp = AcpMode::kPaper;
  return c;
}

BackwardCase Views() {
  BackwardCase c{"Views", WithHeads(PackedCase({1000, 300, 64}), 6, 3, {2, 4, 6})};
  c.views = {1, 0, 4, 100, 3};
  return c;
}

VarlenInputs MakeInputs(const BackwardCase& c) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  VarlenInputs inputs(c.shape);
  std::mt19937_64 random(c.shape.seed + 1);
  std::uniform_real_distribution<float> uniform;
  for (double& gate : inputs.log_fgate.values) {
    if (static_cast<double>(uniform(random)) < c.strong_gate_rate) {
      gate = static_cast<double>(-20 - 20 * uniform(random));
    }
  }
  std::vector<bool> in_sequence(static_cast<size_t>(inputs.batch * inputs.tokens));
  for (int s = 0; s < inputs.num_seqs(); ++s) {
    const int first = inputs.BatchOf(s) * inputs.tokens + inputs.begin[static_cast<size_t>(s)];
    std::fill_n(in_sequence.begin() + first, inputs.length(s), true);
  }
  const auto change = [&](VarlenArray<double>& array, int heads, int dim, bool equal) {
    for (int b = 0; b < inputs.batch; ++b) {
      for (int t = 0; t < inputs.tokens; ++t) {
        for (int i = 0; i < heads * dim; ++i) {
          double& x = array.At(b, t, i / dim, i % dim);
          if (equal) x = array.At(0, 0, i / dim, i % dim);
          if (!in_sequence[static_cast<size_t>(b * inputs.tokens + t)]) x = kNaN;
        }
      }
    }
  };
  change(inputs.q, c.shape.q_heads, c.shape.head_dim, false);
  change(inputs.d_out, c.shape.q_heads, c.shape.head_dim, false);
  change(inputs.k, c.shape.kv_heads, c.shape.head_dim, c.equal_keys);
  change(inputs.v, c.shape.kv_heads, c.shape.head_dim, false);
  change(inputs.log_fgate, c.shape.q_heads, 1, false);
  return inputs;
}

// Which bytes of the gradients' scratch are the kernel's to write.
std::vector<bool> WritableScratch(DeviceVarlen& varlen, int num_tiles) {
  const VarlenAttentionParams& params = varlen.params();
  const VarlenGradients& gradients = varlen.gradients();
  std::vector<bool> writable(VarlenGradientBytes(params));
  const auto allow = [&](const void* array, size_t tile_bytes, int heads, int tiles) {
    const auto first =
        static_cast<const char*>(array) - static_cast<char*>(varlen.gradient_memory());
    for (int h = 0; h < heads; ++h) {
      const auto head =
          first + static_cast<std::ptrdiff_t>(tile_bytes) * h * varlen.state().max_tiles;
      std::fill_n(writable.begin() + head, tile_bytes * static_cast<size_t>(tiles), true);
    }
  };
  constexpr size_t kRows = kVarlenTile * sizeof(float);
  const int heads = params.q_heads;
  allow(gradients.dq, kRows * static_cast<size_t>(params.head_dim), heads, num_tiles);
  allow(gradients.row_sum, kRows, heads, num_tiles);
  allow(gradients.col_sum, kRows, heads, num_tiles);
  allow(gradients.turn, sizeof(int32_t), heads, num_tiles);
  allow(gradients.work_counter, sizeof(int32_t), 1, 1);
  return writable;
}

// dk and dv are written where there are tokens, and nowhere else.
void ExpectOwnRows(const VarlenInputs& inputs, const VarlenArray<double>& gradient) {
  std::vector<bool> own(gradient.values.size());
  for (int s = 0; s < inputs.num_seqs(); ++s) {
    for (int i = 0; i < inputs.length(s); ++i) {
      for (int h = 0; h < inputs.shape.kv_heads; ++h) {
        const double* row =
            &gradient.At(inputs.BatchOf(s), inputs.begin[static_cast<size_t>(s)] + i, h);
        std::fill_n(own.begin() + (row - gradient.values.data()), inputs.shape.head_dim, true);
      }
    }
  }
  size_t wrong = 0;
  for (size_t i = 0; i < own.size(); ++i) wrong += std::isnan(gradient.values[i]) == own[i];
  EXPECT_EQ(wrong, 0u) << "elements that are not written, or not the kernel's";
}

// What lies on both sides of a gate is in a row's sum and in a key's, and has to cancel: float32
// sums of the same numbers differ by some 2^-24 of them, those of two roundings by 2^-9.
void ExpectBalance(const VarlenInputs& inputs, const BackwardOracle& oracle,
                   const DeviceVarlen& varlen) {
  const HostState host = varlen.ToHost();
  const auto max_tiles = static_cast<size_t>(varlen.state().max_tiles);
  const size_t rows = static_cast<size_t>(inputs.shape.q_heads) * max_tiles * kVarlenTile;
  const std::vector<float> row_sum = CopyToHost(varlen.gradients().row_sum, rows);
  const std::vector<float> col_sum = CopyToHost(varlen.gradients().col_sum, rows);
  const auto num_seqs = static_cast<size_t>(inputs.num_seqs());
  for (int h = 0; h < inputs.shape.q_heads; ++h) {
    std::vector<double> difference(num_seqs);
    for (size_t t = 0; t < host.tiles.size(); ++t) {
      const size_t first = (static_cast<size_t>(h) * max_tiles + t) * kVarlenTile;
      for (size_t i = first; i < first + static_cast<size_t>(host.tiles[t].count); ++i) {
        difference[static_cast<size_t>(host.tiles[t].seq)] +=
            static_cast<double>(row_sum[i]) - static_cast<double>(col_sum[i]);
      }
    }
    for (size_t s = 0; s < num_seqs; ++s) {
      EXPECT_LE(std::fabs(difference[s]), 0x1p-22 * oracle.d_logit_sum(static_cast<int>(s), h))
          << "sequence " << s << " head " << h;
    }
  }
}

// The gradients by way of the kernel and what surrounds it.
void RunBackward(BackwardKernel kernel, bool deterministic, const VarlenInputs& inputs,
                 const BackwardOracle& oracle, DeviceVarlen& varlen) {
  varlen.PoisonOutputs();
  varlen.SetOut(inputs.out);
  varlen.SetLse(oracle.lse());
  varlen.params().deterministic = deterministic;
  const VarlenAttentionParams& params = varlen.params();
  const VarlenState& state = varlen.state();
  const VarlenGradients& gradients = varlen.gradients();
  ASSERT_EQ(PrepareGradients(params, state, gradients, nullptr), cudaSuccess);
  ASSERT_EQ(kernel(params, state, gradients, nullptr), cudaSuccess);
  ASSERT_EQ(FinishGradients(params, state, gradients, nullptr), cudaSuccess);
  ASSERT_EQ(ZeroGradientPadding(params, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// The kernel alone: what it writes.
void ExpectOwnWrites(BackwardKernel kernel, const VarlenInputs& inputs, DeviceVarlen& varlen) {
  const VarlenAttentionParams& params = varlen.params();
  const auto memory = [](const void* from, size_t bytes) {
    return CopyToHost(static_cast<const uint8_t*>(from), bytes);
  };
  const size_t state_bytes = VarlenStateBytes(params), scratch_bytes = VarlenGradientBytes(params);
  ASSERT_EQ(PrepareGradients(params, varlen.state(), varlen.gradients(), nullptr), cudaSuccess);
  const std::vector<uint8_t> state = memory(varlen.state_memory(), state_bytes);
  const std::vector<uint8_t> before = memory(varlen.gradient_memory(), scratch_bytes);
  ASSERT_EQ(kernel(params, varlen.state(), varlen.gradients(), nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(memory(varlen.state_memory(), state_bytes), state);
  const std::vector<uint8_t> after = memory(varlen.gradient_memory(), scratch_bytes);
  const std::vector<bool> writable = WritableScratch(varlen, varlen.ToHost().num_tiles);
  size_t wrong = 0;
  for (size_t i = 0; i < after.size(); ++i) wrong += !writable[i] && after[i] != before[i];
  EXPECT_EQ(wrong, 0u) << "bytes of scratch that are not the kernel's";
  ExpectOwnRows(inputs, varlen.Dk());
  ExpectOwnRows(inputs, varlen.Dv());
}

void SetViews(const std::vector<int>& views, DeviceVarlen& varlen) {
  const HostState host = varlen.ToHost();
  const auto max_tiles = static_cast<size_t>(varlen.state().max_tiles);
  std::vector<int32_t> first_page = host.first_page;
  for (size_t h = 0; h < first_page.size() / max_tiles; ++h) {
    for (size_t t = 0; t < host.tiles.size(); ++t) {
      first_page[h * max_tiles + t] =
          std::max(0, host.tiles[t].position / kVarlenPage - views[h % views.size()]);
    }
  }
  varlen.SetFirstPage(first_page);
}

}  // namespace

std::vector<BackwardCase> BackwardCases() {
  const std::vector<BackwardCase> shapes = {Edges(),     Batch(),
                                            HeadFirst(), PackedGroupsOfThree(),
                                            OneHead(),   OpenGates(),
                                            EqualKeys(), StrongGates("RareStrongGates", 0.01),
                                            Paper(),     StrongGates("StrongGates", 0.5),
                                            Views()};
  std::vector<BackwardCase> cases;
  for (const int head_dim : {32, 64, 128}) {
    for (BackwardCase c : shapes) {
      c.name += std::to_string(head_dim);
      c.shape.head_dim = head_dim;
      c.shape.seed = cases.size() + 1;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

void ExpectBackward(BackwardKernel kernel, const BackwardCase& c) {
  VarlenInputs inputs = MakeInputs(c);
  DeviceVarlen varlen(inputs, c.acp);
  varlen.Schedule();
  if (!c.views.empty()) SetViews(c.views, varlen);
  const std::vector<int32_t> first_key = varlen.FirstKeys();
  const BackwardOracle oracle(inputs, first_key);
  for (const bool deterministic : {false, true}) {
    SCOPED_TRACE(deterministic ? "deterministic" : "fast");
    RunBackward(kernel, deterministic, inputs, oracle, varlen);
    oracle.ExpectGradients(varlen.Dq(), varlen.Dk(), varlen.Dv(), varlen.DLogFgate(), c.cancels());
    if (!c.cancels()) ExpectBalance(inputs, oracle, varlen);
  }
  if (c.acp == AcpMode::kPaper) {
    SCOPED_TRACE("not pruned");
    const auto is_odd_page = [](int32_t key) { return key % kVarlenTile != 0; };
    ASSERT_TRUE(std::any_of(first_key.begin(), first_key.end(), is_odd_page));
    VarlenInputs copy = inputs;
    const BackwardOracle unpruned(copy, std::vector<int32_t>(first_key.size()));
    unpruned.ExpectGradients(varlen.Dq(), varlen.Dk(), varlen.Dv(), varlen.DLogFgate(), false);
  }
  varlen.PoisonOutputs();
  varlen.SetOut(inputs.out);
  varlen.SetLse(oracle.lse());
  ExpectOwnWrites(kernel, inputs, varlen);
}

void ExpectDeterminism(BackwardKernel kernel, int head_dim) {
  BackwardCase c{"", WithHeads(PackedCase({1000, 300, 65, 700}), 8, 4, {3, 9, 5, 1})};
  c.shape.head_dim = head_dim;
  VarlenInputs inputs = MakeInputs(c);
  DeviceVarlen varlen(inputs);
  varlen.Schedule();
  const BackwardOracle oracle(inputs, varlen.FirstKeys());
  RunBackward(kernel, true, inputs, oracle, varlen);
  const std::vector<uint8_t> bits = varlen.OutputBits();
  const VarlenArray<double> dq = varlen.Dq(), dk = varlen.Dk(), dv = varlen.Dv(),
                            gates = varlen.DLogFgate();
  for (int run = 0; run < 10; ++run) {
    RunBackward(kernel, true, inputs, oracle, varlen);
    EXPECT_EQ(varlen.OutputBits(), bits) << "run " << run;
  }
  RunBackward(kernel, false, inputs, oracle, varlen);
  // In another order sums differ by some 2^-22 of their terms. That carries one number of bf16 in
  // 2^12 over to its neighbour, by 2^-8 of itself: together, 2^-14.
  EXPECT_LE(RelativeError(varlen.Dq().values, dq.values), 0x1p-12);
  EXPECT_LE(RelativeError(varlen.Dk().values, dk.values), 0x1p-12);
  EXPECT_LE(RelativeError(varlen.Dv().values, dv.values), 0x1p-12);
  EXPECT_LE(RelativeError(varlen.DLogFgate().values, gates.values), 0x1p-12);
}

void ExpectIndependentSequences(BackwardKernel kernel, int head_dim) {
  const std::vector<int> lengths = {129, 300, 0, 64, 1};
  BackwardCase c{"", WithHeads(PackedCase(lengths), 4, 2, {3, 9, 5, 1})};
  c.shape.head_dim = head_dim;
  VarlenInputs packed = MakeInputs(c);
  DeviceVarlen all(packed);
  all.Schedule();
  const BackwardOracle oracle(packed, all.FirstKeys());
  RunBackward(kernel, true, packed, oracle, all);
  for (int s = 0; s < packed.num_seqs(); ++s) {
    const int length = packed.length(s), first = packed.begin[static_cast<size_t>(s)];
    if (length == 0) continue;
    c.shape.sequences = {{0, length}};
    VarlenInputs alone(c.shape);
    // Token-first without padding: a sequence is one piece of each array.
    const auto piece = [&](const VarlenArray<double>& array) {
      const auto begin = array.values.begin() + first * array.token_stride;
      return std::vector<double>(begin, begin + length * array.token_stride);
    };
    for (auto array : {&VarlenInputs::q, &VarlenInputs::k, &VarlenInputs::v, &VarlenInputs::d_out,
                       &VarlenInputs::log_fgate}) {
      (alone.*array).values = piece(packed.*array);
    }
    DeviceVarlen one(alone);
    one.Schedule();
    const BackwardOracle alone_oracle(alone, one.FirstKeys());
    RunBackward(kernel, true, alone, alone_oracle, one);
    // The bases of gates, summed in float64 over other tiles, may differ in the last bit.
    EXPECT_LE(RelativeError(piece(all.Dq()), one.Dq().values), 0x1p-12) << s;
    EXPECT_LE(RelativeError(piece(all.Dk()), one.Dk().values), 0x1p-12) << s;
    EXPECT_LE(RelativeError(piece(all.Dv()), one.Dv().values), 0x1p-12) << s;
    EXPECT_LE(RelativeError(piece(all.DLogFgate()), one.DLogFgate().values), 0x1p-12) << s;
  }
}

}  // namespace fox::cuda::testing
