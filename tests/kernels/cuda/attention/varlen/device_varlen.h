// VarlenInputs on the device: the same layouts in bf16 and float32, the state, the scratch of the
// gradients, and all of it back on the host; and the cases that kernels of either direction pass.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/cuda/attention/varlen/state.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/varlen_inputs.h"

namespace fox::cuda::testing {

using fox::testing::BatchCase;
using fox::testing::PackedCase;
using fox::testing::RelativeError;
using fox::testing::VarlenArray;
using fox::testing::VarlenCase;
using fox::testing::VarlenInputs;

// `shape` with these heads and gate means.
VarlenCase WithHeads(VarlenCase shape, int q_heads, int kv_heads, int head_dim,
                     const std::vector<double>& gate_means);
// Packed and batched sequences of all awkward lengths, layouts, grouped heads, gates from none to
// annihilating, pages cut off anywhere; and `more`. All of head dims 32, 64 and 128.
std::vector<VarlenCase> VarlenCases(const std::vector<VarlenCase>& more);
inline std::ostream& operator<<(std::ostream& out, const VarlenCase& c) { return out << c.name; }

// The state's arrays; [q_heads][max_tiles] and so on.
struct HostState {
  int num_tiles = 0;
  std::vector<VarlenTile> tiles;  // [num_tiles]
  std::vector<double> cum_log_f;
  std::vector<float> log_f_offset, lse;
  std::vector<int32_t> first_page;
  int32_t work_counter = 0;
};

class DeviceVarlen {
 public:
  // Copies the inputs; out and the gradients are poisoned. `acp` with the bounds of `inputs`.
  explicit DeviceVarlen(VarlenInputs& inputs, AcpMode acp = AcpMode::kOff, double log_eps = -10);

  // Views of the device. May be changed; their values at the call of Allocate decide its sizes.
  VarlenAttentionParams& params() { return params_; }

  // Memory for state and gradients, poisoned.
  void Allocate();
  // Allocate, then ScheduleVarlen; with random pages where the case says so.
  void Schedule();
  const VarlenState& state() const { return state_; }
  const VarlenGradients& gradients() const { return gradients_; }
  void* state_memory() const { return state_memory_.data(); }
  void* gradient_memory() const { return gradient_memory_.data(); }

  // A forward kernel's output, from the oracle's: `out` rounded to bf16; lse [batch][tokens]
  // [q_heads] as VarlenInputs::Forward gives it. After Schedule.
  void SetOut(const VarlenArray<double>& out);
  void SetLse(const std::vector<double>& lse);
  // First pages of any value that the contract allows: they do not fall along a sequence.
  void RandomizeFirstPages();
  // Poisons the arrays that the kernels must write.
  void PoisonOutputs();

  HostState ToHost() const;
  // The oracle's mask: first_page of each row's tile, as its first key.
  std::vector<int32_t> FirstKeys() const;
  VarlenArray<double> Out() const { return Widen(out_, inputs_.out); }
  VarlenArray<double> Dq() const { return Widen(dq_, inputs_.dq); }
  VarlenArray<double> Dk() const { return Widen(dk_, inputs_.dk); }
  VarlenArray<double> Dv() const { return Widen(dv_, inputs_.dv); }
  VarlenArray<double> DLogFgate() const;
  // The bits of out, dq, dk, dv and d_log_fgate, one after the other.
  std::vector<uint8_t> OutputBits() const;

 private:
  using Bf16Array = DeviceArray<BFloat16>;

  static VarlenArray<double> Widen(const Bf16Array& from, const VarlenArray<double>& layout);

  VarlenInputs& inputs_;
  VarlenAttentionParams params_;
  DeviceArray<int32_t> begin_, end_;
  DeviceArray<float> threshold_, max_query_norm_;
  Bf16Array q_, k_, v_, out_, d_out_, dq_, dk_, dv_;
  DeviceArray<float> log_fgate_, d_log_fgate_;
  DeviceArray<uint8_t> state_memory_, gradient_memory_;
  VarlenState state_;
  VarlenGradients gradients_;
};

// `count` elements of device memory.
template <typename T>
std::vector<T> CopyToHost(const T* from, size_t count) {
  std::vector<T> host(count);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(host.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return host;
}

template <typename T>
void CopyToDevice(const std::vector<T>& host, T* to) {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(to, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
            cudaSuccess);
}

}  // namespace fox::cuda::testing
