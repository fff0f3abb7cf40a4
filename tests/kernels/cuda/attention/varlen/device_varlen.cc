// Copies in both directions, and the table of cases. See device_varlen.h.
#include "tests/kernels/cuda/attention/varlen/device_varlen.h"

#include <algorithm>
#include <limits>
#include <random>

#include "kernels/cuda/attention/varlen/kernels.h"

namespace fox::cuda::testing {
namespace {

constexpr double kLog2E = 1.4426950408889634;

std::vector<BFloat16> RoundToBf16(const VarlenArray<double>& array) {
  std::vector<BFloat16> rounded;
  for (const double x : array.values) rounded.emplace_back(static_cast<float>(x));
  return rounded;
}

VarlenView View(const VarlenArray<double>& layout, void* data) {
  return {data, layout.batch_stride, layout.token_stride, layout.head_stride};
}

std::vector<uint8_t> Bytes(const void* from, size_t bytes) {
  return CopyToHost(static_cast<const uint8_t*>(from), bytes);
}

}  // namespace

VarlenCase WithHeads(VarlenCase shape, int q_heads, int kv_heads, int head_dim,
                     const std::vector<double>& gate_means) {
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.gate_means = gate_means;
  return shape;
}

std::vector<VarlenCase> VarlenCases(const std::vector<VarlenCase>& more) {
  std::vector<VarlenCase> shapes;
  const auto add = [&](const std::string& name, const VarlenCase& shape, int q_heads, int kv_heads,
                       const std::vector<double>& gate_means) -> VarlenCase& {
    shapes.push_back(WithHeads(shape, q_heads, kv_heads, 0, gate_means));
    shapes.back().name = name;
    return shapes.back();
  };
  add("Edges", PackedCase({1, 63, 64, 0, 65, 127, 128, 1, 129, 2, 700, 191, 193}), 2, 2, {1, 5});
  // A batch row each, one without tokens; a local head and a global one share their keys.
  add("Batch", BatchCase({300, 0, 129, 64, 1}), 4, 2, {0, 9, 3, 5}).padding = 8;
  // Sequences that begin and end anywhere in their row, one not at all; heads before tokens.
  VarlenCase& anywhere = add("HeadFirst", {}, 6, 2, {2, 5, 0, 8});
  anywhere.sequences = {{3, 200}, {0, 512}, {100, 100}, {511, 512}, {64, 257}};
  anywhere.tokens = 520;
  anywhere.head_first = true;
  anywhere.padding = 16;
  VarlenCase& threes = add("GroupsOfThree", PackedCase({200, 127, 0, 65}), 3, 1, {5, 1, 3});
  threes.tokens = 500;
  threes.head_first = true;
  add("OneHead", BatchCase({1000}), 1, 1, {4}).padding = 24;
  // Gates that forget nothing, or next to nothing.
  add("OpenGates", PackedCase({500, 300}), 2, 2, {30, 14});
  add("RareStrongGates", PackedCase({400, 300}), 2, 2, {5, 2}).strong_gate_rate = 0.01;
  add("StrongGates", PackedCase({400, 300}), 2, 2, {5, 2}).strong_gate_rate = 0.5;
  add("RandomPages", PackedCase({1000, 64, 333, 65}), 4, 2, {9, 3}).random_pages = true;
  shapes.insert(shapes.end(), more.begin(), more.end());
  std::vector<VarlenCase> cases;
  for (const int head_dim : {32, 64, 128}) {
    for (VarlenCase c : shapes) {
      c.name += std::to_string(head_dim);
      c.head_dim = head_dim;
      c.seed = cases.size() + 1;
      cases.push_back(c);
    }
  }
  return cases;
}

DeviceVarlen::DeviceVarlen(VarlenInputs& inputs, AcpMode acp, double log_eps)
    : inputs_(inputs),
      begin_(inputs.begin),
      end_(inputs.end),
      threshold_(inputs.PaperThresholds(log_eps)),
      max_query_norm_(inputs.MaxQueryNorms()),
      q_(RoundToBf16(inputs.q)),
      k_(RoundToBf16(inputs.k)),
      v_(RoundToBf16(inputs.v)),
      out_(inputs.out.values.size()),
      d_out_(RoundToBf16(inputs.d_out)),
      dq_(inputs.dq.values.size()),
      dk_(inputs.dk.values.size()),
      dv_(inputs.dv.values.size()),
      log_fgate_(
          std::vector<float>(inputs.log_fgate.values.begin(), inputs.log_fgate.values.end())),
      d_log_fgate_(inputs.d_log_fgate.values.size()) {
  params_.batch = inputs.batch;
  params_.tokens = inputs.tokens;
  params_.q_heads = inputs.shape.q_heads;
  params_.kv_heads = inputs.shape.kv_heads;
  params_.head_dim = inputs.shape.head_dim;
  params_.seqs = {inputs.num_seqs(), begin_.data(), end_.data(), inputs.shape.packed};
  params_.scale = inputs.scale;
  params_.acp = acp;
  params_.threshold = threshold_.data();
  params_.max_query_norm = max_query_norm_.data();
  params_.log_eps = log_eps;
  params_.q = View(inputs.q, q_.data());
  params_.k = View(inputs.k, k_.data());
  params_.v = View(inputs.v, v_.data());
  params_.log_fgate = View(inputs.log_fgate, log_fgate_.data());
  params_.out = View(inputs.out, out_.data());
  params_.d_out = View(inputs.d_out, d_out_.data());
  params_.dq = View(inputs.dq, dq_.data());
  params_.dk = View(inputs.dk, dk_.data());
  params_.dv = View(inputs.dv, dv_.data());
  params_.d_log_fgate = View(inputs.d_log_fgate, d_log_fgate_.data());
}

void DeviceVarlen::Allocate() {
  state_memory_ = DeviceArray<uint8_t>(VarlenBytes<VarlenState>(params_));
  gradient_memory_ = DeviceArray<uint8_t>(VarlenBytes<VarlenGradients>(params_));
  state_ = MakeVarlen<VarlenState>(params_, state_memory_.data());
  gradients_ = MakeVarlen<VarlenGradients>(params_, gradient_memory_.data());
}

void DeviceVarlen::Schedule() {
  Allocate();
  ASSERT_EQ(ScheduleVarlen(params_, state_, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  if (inputs_.shape.random_pages) RandomizeFirstPages();
}

void DeviceVarlen::SetOut(const VarlenArray<double>& out) { out_.CopyFrom(RoundToBf16(out)); }

void DeviceVarlen::SetLse(const std::vector<double>& lse) {
  const HostState host = ToHost();
  const std::vector<double> c = inputs_.CumulativeGates();
  std::vector<float> device(host.lse.size(), std::numeric_limits<float>::quiet_NaN());
  for (int h = 0; h < inputs_.shape.q_heads; ++h) {
    for (int t = 0; t < host.num_tiles; ++t) {
      const VarlenTile& tile = host.tiles[static_cast<size_t>(t)];
      float* rows = &device[static_cast<size_t>(h * state_.max_tiles + t) * kVarlenTile];
      std::fill_n(rows, kVarlenTile, std::numeric_limits<float>::infinity());
      const double reference = c[inputs_.RowIndex(tile.seq, tile.position, h)];
      for (int i = 0; i < tile.count; ++i) {
        const size_t row = inputs_.RowIndex(tile.seq, tile.position + i, h);
        rows[i] = static_cast<float>(kLog2E * (lse[row] - c[row] + reference));
      }
    }
  }
  CopyToDevice(device, state_.lse);
}

void DeviceVarlen::RandomizeFirstPages() {
  HostState state = ToHost();
  std::mt19937_64 random(1);
  for (int h = 0; h < params_.q_heads; ++h) {
    int page = 0;
    for (int t = 0; t < state.num_tiles; ++t) {
      const int position = state.tiles[static_cast<size_t>(t)].position;
      if (position == 0) page = 0;
      if (random() % 2 == 0) {
        page = std::uniform_int_distribution<int>(page, position / kVarlenPage)(random);
      }
      state.first_page[static_cast<size_t>(h * state_.max_tiles + t)] = page;
    }
  }
  CopyToDevice(state.first_page, state_.first_page);
}

void DeviceVarlen::PoisonOutputs() {
  for (Bf16Array* array : {&out_, &dq_, &dk_, &dv_}) array->Fill(kPoison);
  d_log_fgate_.Fill(kPoison);
  if (state_.lse == nullptr) return;
  const size_t rows = static_cast<size_t>(params_.q_heads * state_.max_tiles) * kVarlenTile;
  EXPECT_EQ(cudaMemset(state_.lse, kPoison, rows * sizeof(float)), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

HostState DeviceVarlen::ToHost() const {
  HostState host;
  const auto head_tiles = static_cast<size_t>(params_.q_heads * state_.max_tiles);
  host.num_tiles = CopyToHost(state_.num_tiles, 1)[0];
  host.work_counter = CopyToHost(state_.work_counter, 1)[0];
  EXPECT_LE(host.num_tiles, state_.max_tiles);
  host.tiles = CopyToHost(state_.tiles, static_cast<size_t>(host.num_tiles));
  host.cum_log_f = CopyToHost(state_.cum_log_f, head_tiles);
  host.log_f_offset = CopyToHost(state_.log_f_offset, head_tiles * kVarlenTile);
  host.lse = CopyToHost(state_.lse, head_tiles * kVarlenTile);
  host.first_page = CopyToHost(state_.first_page, head_tiles);
  return host;
}

std::vector<int32_t> DeviceVarlen::FirstKeys() const {
  const HostState host = ToHost();
  std::vector<int32_t> first_key(inputs_.num_rows());
  for (int h = 0; h < params_.q_heads; ++h) {
    for (int t = 0; t < host.num_tiles; ++t) {
      const VarlenTile& tile = host.tiles[static_cast<size_t>(t)];
      for (int i = 0; i < tile.count; ++i) {
        first_key[inputs_.RowIndex(tile.seq, tile.position + i, h)] =
            host.first_page[static_cast<size_t>(h * state_.max_tiles + t)] * kVarlenPage;
      }
    }
  }
  return first_key;
}

VarlenArray<double> DeviceVarlen::Widen(const Bf16Array& from, const VarlenArray<double>& layout) {
  VarlenArray<double> array = layout;
  const std::vector<BFloat16> values = from.ToHost();
  for (size_t i = 0; i < values.size(); ++i) {
    array.values[i] = static_cast<double>(static_cast<float>(values[i]));
  }
  return array;
}

VarlenArray<double> DeviceVarlen::DLogFgate() const {
  VarlenArray<double> array = inputs_.d_log_fgate;
  const std::vector<float> values = d_log_fgate_.ToHost();
  array.values.assign(values.begin(), values.end());
  return array;
}

std::vector<uint8_t> DeviceVarlen::OutputBits() const {
  std::vector<uint8_t> bits = Bytes(d_log_fgate_.data(), d_log_fgate_.bytes());
  for (const Bf16Array* array : {&out_, &dq_, &dk_, &dv_}) {
    const std::vector<uint8_t> bytes = Bytes(array->data(), array->bytes());
    bits.insert(bits.end(), bytes.begin(), bytes.end());
  }
  return bits;
}

}  // namespace fox::cuda::testing
