// DeviceHeads: one head of several sequences, run through CudaOps step by step, and the operands
// that it stored for every token, evicted ones too. So a test can say in float64, from the operands
// that the device used, which share of its attention each row lost.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/paging/acp.h"
#include "tests/kernels/cuda/device_kv.h"
#include "tests/kernels/head_sequence.h"

namespace fox::cuda::testing {

using fox::testing::GateLogit;
using fox::testing::HeadInputs;
using fox::testing::HeadShape;
using fox::testing::RandomInputs;

// One sequence of one head; everything is rounded to bf16.
struct HeadRows {
  HeadInputs inputs;
  double log_tolerance = -10;
};

// A sequence's operands as the device stored them.
struct StoredRows {
  std::vector<double> q, k;                                                   // [length, head_dim]
  std::vector<double> log_f_offset;                                           // [length]
  std::vector<double> page_cum_log_f, log_mass_bound, log_denominator_bound;  // [pages]
  std::vector<int> first_page;  // [length]: the row did not see the pages before
  std::vector<double> lse;      // [length], 0 where the step did not attend

  // c of a token, relative to which it is weighed.
  double CumulativeGate(int64_t row) const {
    const auto at = static_cast<size_t>(row);
    return page_cum_log_f[at / kPageTokens] + log_f_offset[at];
  }
};

class DeviceHeads {
 public:
  // The first sequence's norms, bounds and type of pages apply to all sequences. `portable`: the
  // sm_80 kernel. `min_log_gate`: a clamp looser than the head's own.
  explicit DeviceHeads(std::vector<HeadRows> sequences, bool portable = false,
                       double min_log_gate = 0);

  // One step, from BeginStep to Evict: the next rows[s] rows of each sequence s; a sequence with
  // rows[s] == 0 is not in the step. Pages that a row skipped by itself are recorded where the
  // counters show them: where all rows of a step share a tile's half.
  void Step(const std::vector<int64_t>& rows, bool attend = true);
  // Steps with `rows` rows of each sequence, to the sequences' ends.
  void Run(int64_t rows, bool attend = true);

  const HeadInputs& constants() const { return sequences_[0].inputs; }
  int num_seqs() const { return static_cast<int>(sequences_.size()); }
  const StoredRows& stored(int s) const { return stored_[static_cast<size_t>(s)]; }
  int first_live(int s) const { return first_live_[static_cast<size_t>(s)]; }
  double max_log_evicted_mass(int s) const;
  // The log of the share that the pages which a row did not see have in its attention. With `c`
  // [length], those cumulative gates in place of the stored ones.
  double LogLostMass(int s, int64_t row, const std::vector<double>* c = nullptr) const;
  // The log of the share of keys [0, first) in a row's attention.
  double LogMassBefore(int s, int64_t row, size_t first,
                       const std::vector<double>* c = nullptr) const;
  // The log-sum-exp of all of a row's logits and the sink, as attention's lse is meant.
  double ExactLse(int s, int64_t row) const;
  // The largest excess over the tolerance of any row; kNoMass where no row lost anything.
  double WorstExcess() const;
  // What the sequence's rows lost to evicted pages, by the device, if all of them attended: at
  // least the mass of these pages, and no more than the rows' bounds in float64.
  void ExpectLostMass(int s) const;

 private:
  void Keep(const std::vector<fox::testing::StepRows>& entries,
            const fox::testing::HeadRun::Result& step, bool attend);
  // Logits of a row relative to its own gate; with `c` as in LogLostMass.
  std::vector<double> Logits(int s, int64_t row, const std::vector<double>* c) const;
  double ExactLse(const std::vector<double>& logits) const;
  // Pages that page ends before the row's page have evicted, by the stored bounds.
  int EvictedPages(int s, int64_t row) const;

  const std::vector<HeadRows> sequences_;
  std::unique_ptr<CudaOps> ops_;
  DeviceKv kv_;
  std::unique_ptr<fox::testing::HeadRun> run_;
  std::vector<StoredRows> stored_;
  std::vector<LostMass> lost_;
  std::vector<int64_t> lengths_;
  std::vector<int32_t> first_live_;
};

}  // namespace fox::cuda::testing
