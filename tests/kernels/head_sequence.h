// A layer's worth of random projections and a cache to run them through, in chunks, on any backend;
// and the same attention computed naively in float64, with which kernel tests compare.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/interface/ops.h"
#include "kernels/interface/paged_kv_storage.h"
#include "tests/kernels/relative_error.h"

namespace fox::testing {

inline constexpr double kNormEps = 1e-5;

struct HeadShape {
  int q_heads = 2;
  int kv_heads = 2;
  int head_dim = 64;
  bool k_shift = false;
  bool v_shift = false;
  bool qk_norm = true;
  bool rope = false;
  bool output_norm = false;
  bool output_gate = false;
  Activation gate_act = Activation::kSigmoid;
  bool sink = false;
  bool norm_caps = false;       // not with QK-norm
  double attention_factor = 1;  // of RoPE
  int64_t hidden() const { return static_cast<int64_t>(q_heads) * head_dim; }
  int64_t kv() const { return static_cast<int64_t>(kv_heads) * head_dim; }
};

// One sequence's inputs: [q | k | v | output gate | k_shift | v_shift | fgate] by row, and the
// constants.
struct HeadInputs {
  HeadShape shape;
  int64_t length = 0;
  std::vector<double> projection;   // [length, columns()]
  std::vector<double> q_norm;       // [hidden]
  std::vector<double> k_norm;       // [kv]
  std::vector<double> output_norm;  // [hidden]
  std::vector<double> rope_frequency;
  std::vector<float> sink, q_cap;        // [q_heads]
  std::vector<float> k_cap;              // [kv_heads]
  std::vector<float> bound_diagonal;     // [hidden]
  std::vector<double> self_logit_bound;  // [q_heads]
  std::vector<double> max_logit_bound;
  DType pages = DType::kBF16;  // that the bounds are for

  int64_t columns() const {
    return k_shift_column() + (shape.k_shift ? shape.kv_heads : 0) +
           (shape.v_shift ? shape.kv_heads : 0) + shape.q_heads;
  }
  int64_t output_gate_column() const { return shape.hidden() + 2 * shape.kv(); }
  int64_t k_shift_column() const {
    return output_gate_column() + (shape.output_gate ? shape.hidden() : 0);
  }
  int64_t v_shift_column() const { return k_shift_column() + (shape.k_shift ? shape.kv_heads : 0); }
  int64_t gate_column() const { return columns() - shape.q_heads; }
  double& at(int64_t row, int64_t column) {
    return projection[static_cast<size_t>(row * columns() + column)];
  }
  double at(int64_t row, int64_t column) const {
    return projection[static_cast<size_t>(row * columns() + column)];
  }
};

// Gaussian q, k, v, norms around 1, sinks around 0, caps of which half the rows exceed, gate logits
// N(mean, 1) with a mean for each head.
HeadInputs RandomInputs(const HeadShape& shape, int64_t length, uint64_t seed,
                        const std::vector<double>& gate_means);
// Rounds the projections to bf16, as a backend with bf16 activations gets them.
void RoundToBFloat16(HeadInputs& inputs);
// Rounds a token's key or value as pages of 8 bits do.
void RoundToE4M3(double* row, int64_t count);
// Rounds all keys and values to 8 bits. REQUIRES: they are stored as they are projected.
void RoundToE4M3(HeadInputs& inputs);
// The bounds of kernels/paging/acp.h from QK-norm or caps, and sinks, for pages of this type; call
// after changing those.
void SetBounds(HeadInputs& inputs, DType pages = DType::kBF16);

struct HeadOutputs {
  std::vector<double> out;  // [length, hidden]
  std::vector<double> lse;  // [length, q_heads]
  int64_t blocks_total = 0, blocks_pruned = 0, pages_evicted = 0;
  std::vector<int32_t> first_live;           // [kv_heads] at the end
  std::vector<double> max_log_evicted_mass;  // [kv_heads]
  LostMass lost_mass;

  // The results that must be equal in all bits for equal keys and values, in any chunks and types
  // of pages.
  auto bits() const { return std::tie(out, lse, first_live, max_log_evicted_mass, blocks_pruned); }
};

struct RunOptions {
  DType dtype = DType::kF64;
  AcpMode acp = AcpMode::kOff;
  double log_tolerance = -10;
  std::vector<int64_t> chunks = {};  // sizes, the last one repeated; empty: all at once
  int slot = 0;
  int64_t attend_every = 1;           // only each n-th chunk attends, the others give zeros
  const QueryBound* bound = nullptr;  // null: the QK-norm bounds of the inputs
  double min_log_gate = 0;            // a clamp looser than the inputs' own
};

// Rows of one sequence in a step.
struct StepRows {
  int slot = 0;  // -1: padding
  int64_t position = 0, rows = 1;
  double log_tolerance = -10;
};

// Steps of any sequences with the same constants: BeginStep, Append, Attention, Evict. The cache's
// layers are given the same rows, each half as large as the one before.
class HeadRun {
 public:
  // REQUIRES: the backend has been told of all rows (Ops::Reserve).
  HeadRun(Ops& ops, const PagedKv& kv, const HeadInputs& constants, const RunOptions& options);
  ~HeadRun();

  struct Result {
    // [layers, rows, columns()], with the queries that Append has left.
    std::vector<double> projection;
    // [layers, rows, hidden] and [layers, rows, q_heads]; zeros without attention.
    std::vector<double> out, lse;
    std::vector<int64_t> blocks_total, blocks_pruned, pages_evicted;  // [num_seqs]
    std::vector<LostMass> lost_mass;                                  // [num_seqs]; of attention
  };
  // `projection`: of all rows.
  Result Step(const std::vector<StepRows>& sequences, const std::vector<double>& projection,
              bool attend = true);

 private:
  struct Parameters;

  Ops& ops_;
  const PagedKv& kv_;
  const HeadInputs& in_;
  const std::unique_ptr<Parameters> parameters_;
};

// Runs the whole sequence through Append, Attention and Evict, and releases the slot.
HeadOutputs RunHeads(Ops& ops, PagedKvStorage& storage, const HeadInputs& inputs,
                     const RunOptions& options);
// RunHeads over a cache of its own.
HeadOutputs RunHeads(Ops& ops, const HeadInputs& inputs, const RunOptions& options);
// A cache that holds `length` tokens of one layer of these heads, unpruned, in `slots` slots.
PagedKvShape ShapeFor(const HeadShape& shape, int64_t length, DType dtype, int slots = 1);

// Full attention in float64, straight from the definition.
HeadOutputs NaiveAttention(const HeadInputs& inputs);

// Cases in which every backend's attention has to match NaiveAttention: lengths around a page, head
// sizes, each of the model's choices (groups, token shifts, norms, caps, rotation, sinks, output
// gates), and gates from almost 0 (a head that sees itself only) to exactly 1 in float64.
std::vector<HeadInputs> AttentionCases(const std::vector<int>& head_dims);
// The gate logit whose log sigmoid is `log_f` < 0.
double GateLogit(double log_f);
// The largest | got - want |; NaN counts as infinity.
double LargestError(const std::vector<double>& got, const std::vector<double>& want);

}  // namespace fox::testing
