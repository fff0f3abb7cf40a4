// DeviceCache: one layer of a paged cache in the middle of a step, in device memory, made by the
// CPU backend from random data: the state that attention kernels find after BeginStep, Append and
// earlier Evicts, without running those kernels. And the float64 oracle of attention's results.
//
// Everything a kernel has no business with is poison (NaN, or page id and index -1): stale tokens,
// foreign pages and layers, evicted entries, columns beside q, outputs before the run.
#pragma once

#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"
#include "kernels/paging/paged_kv.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/head_sequence.h"

namespace fox::cuda::testing {

struct CacheSequence {
  int64_t length = 1;  // after the step
  int64_t rows = 1;    // the sequence's last rows are the batch's
  double log_tolerance = -10;
  int slot = 0;  // any order, each at most once; -1: padding, with one row
};

struct CacheOptions {
  int q_heads = 2;
  int kv_heads = 2;
  int head_dim = 64;
  std::vector<CacheSequence> sequences = {};
  // Gate logits are N(mean, 1), with a mean for each head, repeated.
  std::vector<double> gate_means = {3.0};
  // Share of tokens at which a head forgets nearly all: log gate uniform in [-100, -40].
  double strong_gate_rate = 0;
  AcpMode acp = AcpMode::kCertified;
  // False: queries and keys of all lengths, and no bound on logits. Not for kCertified.
  bool qk_norm = true;
  bool sink = false;
  // The output transform; gates are N(0, 2).
  bool output_norm = false;
  bool output_gate = false;
  Activation gate_act = Activation::kSigmoid;
  bool evict = true;  // earlier steps have evicted all pages that they may; false: none
  int layers = 2;
  int layer = 1;
  uint64_t seed = 1;
};

class DeviceCache;

// A case of a table of shapes, and what makes it the case that it is meant to be.
struct CacheCase {
  std::string name;
  CacheOptions options;
  void (*expect)(const DeviceCache& cache) = [](const DeviceCache&) {};
};
inline std::ostream& operator<<(std::ostream& out, const CacheCase& c) { return out << c.name; }
template <typename Case>
std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}
inline std::string ModeName(AcpMode acp) {
  return acp == AcpMode::kOff ? "Off" : acp == AcpMode::kPaper ? "Paper" : "Certified";
}
// One row each, in slots that are not in the batch's order.
std::vector<CacheSequence> OneRowEach(const std::vector<int64_t>& lengths);

// A bf16 of poison.
inline constexpr uint16_t kPoisonBits = 0xffff;
// Relative. PrefillSm90 adds up weights that are rounded so.
inline constexpr double kBf16Rounding = 0x1p-8;

// The rows that a kernel serves.
enum class RowKind : uint8_t {
  kDecode,  // of the sequences with exactly one row
  kPrefill  // of the others, by work.tiles
};

// PlanSplits, done when it returns: behind AppendDecode attention reads the plan before it waits
// for the kernel before it.
cudaError_t Plan(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                 int layer);

class DeviceCache {
 public:
  explicit DeviceCache(const CacheOptions& options);

  // Device pointers, ready for the kernels. out and lse are poisoned, counters not zero.
  const BatchView& batch() const { return batch_; }
  const PagedKv& kv() const { return kv_; }
  // boundary holds the right values; partial is poisoned, both counters are zero.
  const StepSchedule& schedule() const { return schedule_; }
  const AttentionParams& params() const { return params_; }

  // The host's copies.
  const CacheOptions& options() const { return options_; }
  const std::vector<RowBlock>& tiles() const { return tiles_; }
  int num_tiles() const { return static_cast<int>(tiles_.size()); }
  int first_live(int s, int kv_head) const;
  // The boundaries that PruneBoundaries must find: [q_heads, schedule.max_tiles], -1 past the
  // tiles.
  const std::vector<int32_t>& boundaries() const { return boundaries_; }
  // For tests of PruneBoundaries: boundary and tile_counter become garbage.
  void PoisonBoundaries();
  DeviceArray<int32_t>& boundary_array() { return boundary_array_; }
  DeviceArray<int32_t>& tile_counter_array() { return tile_counter_array_; }
  DeviceArray<SeqHead>& seq_head_array() { return seq_head_array_; }
  DeviceArray<int32_t>& arrival_counter_array() { return arrival_counter_array_; }
  DeviceArray<uint32_t>& partial_array() { return partial_array_; }
  DeviceArray<uint16_t>& out_array() { return out_array_; }
  DeviceArray<float>& lse_array() { return lse_array_; }
  // Poisons outputs and partial again and resets counters and tile_counter, for another run.
  void ResetOutputs();

  // Exact attention of one row over all its keys, evicted ones included; `out` with its norm and
  // gate.
  struct Exact {
    std::vector<double> out;        // [head_dim]
    std::vector<double> tolerance;  // [head_dim], absolute, of the bf16 output
    double lse = 0;
    double lse_tolerance = 0;
  };
  Exact Oracle(int s, int64_t row_in_seq, int q_head, double sum_rounding) const;

  // After the kernel: the rows of `kind` agree with
  // the oracle (a sample of them where all would take too long), all other memory of out and lse is
  // unchanged, and the counters are right (where rows stop by themselves: in their range).
  // `sum_rounding`: of the sum of a row's weights, relative.
  void CheckOutputs(RowKind kind, double sum_rounding = 0) const;
  // The counters alone.
  void CheckCounters(RowKind kind) const;

 private:
  static constexpr double kNormEps = 1e-5;
  static constexpr int64_t kFirstCount = 1000;  // the counters' values before a run
  struct ListGates {                            // one (sequence, query head)
    std::vector<double> c;                      // [length], exact
    std::vector<float> local;                   // [length]
    std::vector<double> base;                   // [pages]
    std::vector<double> log_mass_bound;         // [full pages]; empty without a bound
    std::vector<double> log_denominator_bound;
  };

  void MakeSequence(int s);
  void ReadGates(int s, int q_head, const fox::testing::HeadInputs& rows, const PagedKv& kv);
  int EvictList(int s, int kv_head) const;
  double Threshold(const ListGates& gates, int q_head, double c, int64_t page_before) const;
  void CutRows(int unit, std::vector<RowBlock>* blocks, bool single_rows) const;
  int BoundaryOf(const RowBlock& rows, int q_head) const;
  std::vector<int32_t> Boundaries() const;
  void MakeShape();
  void MakePages();
  void MakeBatch();
  void MakeQueries();
  void MakeOutputTransform();
  void MakeSchedule();
  void MakeSplits();
  // Applies the output norm and gate to an output and to the error that a kernel may make in it.
  void TransformExact(int64_t row, int q_head, std::vector<double>* out,
                      std::vector<double>* error) const;
  double RelativeErrors(const ListGates& gates, int64_t reference, int64_t j, double key_logit,
                        int64_t pages) const;
  bool CheckRow(int s, int64_t row_in_seq, int q_head, double sum_rounding,
                const std::vector<uint16_t>& out, const std::vector<float>& lse) const;
  void CheckUntouched(RowKind kind, const std::vector<uint16_t>& out,
                      const std::vector<float>& lse) const;
  int LastStop(int t, int q_head, int begin, int end, const std::vector<float>& lse) const;
  int64_t MostSkipped(int t, int q_head, const std::vector<float>& lse) const;
  bool Serves(RowKind kind, int s) const;
  // body(row) for all rows except padding.
  template <typename Body>
  void ForEachRow(const Body& body) const {
    for (int s = 0; s < num_seqs(); ++s) {
      const int64_t begin = row_begin_[static_cast<size_t>(s)];
      for (int64_t r = begin; r < begin + seq(s).rows && seq(s).slot >= 0; ++r) body(r);
    }
  }
  double LogEps(int s) const;
  // c as stored, and an upper bound on it.
  double CacheC(const ListGates& gates, int64_t position) const;
  double UpperC(const ListGates& gates, int64_t position) const;

  const CacheSequence& seq(int i) const { return options_.sequences[static_cast<size_t>(i)]; }
  int num_seqs() const { return static_cast<int>(options_.sequences.size()); }
  int group() const { return options_.q_heads / options_.kv_heads; }
  const ListGates& gates(int s, int q_head) const {
    return gates_[static_cast<size_t>(s * options_.q_heads + q_head)];
  }
  const float* Key(int s, int kv_head, int64_t position) const;
  const float* Value(int s, int kv_head, int64_t position) const;
  const float* Query(int64_t row, int q_head) const;

  CacheOptions options_;
  std::mt19937_64 rng_;
  int64_t num_rows_ = 0;
  std::vector<int64_t> row_begin_;
  fox::testing::HeadInputs constants_;
  std::vector<std::vector<float>> keys_, values_;  // by (seq, kv head): [length, head_dim]
  std::vector<float> queries_;                     // [num_rows, q_heads, head_dim]
  std::vector<float> output_norm_;                 // [q_heads, head_dim]
  std::vector<float> output_gate_;                 // [num_rows, q_heads, head_dim]
  std::vector<ListGates> gates_;
  std::vector<int> first_live_;  // [num_seqs, kv_heads]
  std::vector<RowBlock> blocks_, tiles_;
  std::vector<int32_t> boundaries_;

  BatchView batch_;
  PagedKv kv_;
  StepSchedule schedule_;
  AttentionParams params_;

  DeviceMemory memory_;
  DeviceArray<uint16_t> out_array_;
  DeviceArray<float> lse_array_;
  DeviceArray<uint32_t> partial_array_;
  DeviceArray<int32_t> boundary_array_, tile_counter_array_, arrival_counter_array_;
  DeviceArray<SeqHead> seq_head_array_;
  DeviceArray<int64_t> total_array_, skipped_array_;
};

}  // namespace fox::cuda::testing
