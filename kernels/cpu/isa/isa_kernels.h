// The inner loops of the CPU backend, compiled once per instruction set from isa_kernels.inc and
// picked at run time. Plain data in, plain data out; everything around them is portable code.
//
// Invariant: what one row computes never depends on the rows beside it, so results do not depend on
// the batch or the chunk.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/core/weight_format.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// Values are padded so that every vector width divides a row.
constexpr int PaddedDim(int head_dim) { return (head_dim + 15) / 16 * 16; }
static_assert(PaddedDim(16) == 16 && PaddedDim(17) == 32);

// One query row of one head in the loop over pages: online softmax state.
template <typename T>
struct TileRow {
  const T* q;             // [head_dim]
  const T* log_f_offset;  // [64] of the current page, for this row's head
  T page_decay;           // page_cum_log_f of the row's page minus page_cum_log_f of the current
                          // page
  T local;                // the row's own offset from its page's page_cum_log_f
  int keys;               // the row sees keys [0, keys) of the page, at least one
  T max;                  // running maximum of logits with decay
  T sum;                  // running sum of exp(logit - max)
  T* out;                 // [PaddedDim] running sum of exp(logit - max) * v
};

// Several rows and one page.
template <typename T>
struct PageTile {
  int head_dim;
  const T* keys;    // [head_dim, 64]
  const T* values;  // [64, PaddedDim]
  T scale;          // 1 / sqrt(head_dim)
  int num_rows;
  TileRow<T>* const* rows;
};

inline constexpr int kPanelColumns = 32;

// out[r, n] = sum_k in[r, k] * panel[k, n]: one panel of 32 outputs, for all rows.
template <typename T>
struct GemmPanel {
  const T* in;
  int64_t in_stride;
  int64_t rows;
  int64_t depth;
  const T* panel;  // [depth, 32]
  const T* bias;   // [columns] or null
  bool accumulate;
  T* out;
  int64_t out_stride;
  int64_t columns;  // at most 32 of the panel are wanted
};

// Rounded weights of 32 outputs, for each block of 32 inputs: 32 scales in half precision, then the
// codes of inputs 2p and 2p + 1 side by side, outputs in order. Q8: for p from 0 to 15, int8. Q4:
// for groups of four p, words of 16 bits, whose nibble i, from the lowest, belongs to pair i of the
// group; 8 is zero.
constexpr int64_t BlockBytes(int bits) { return kPanelColumns * (2 + 4 * bits); }

// out[r, n] = sum_k in[r, k] * weight[n, k] for a panel of rounded weights. The inputs are rounded
// to 16 bits, each block with a scale of its own: exact sums in integers, one float32 sum over
// blocks.
struct BlockPanel {
  const int16_t* codes;  // [rows, blocks, 32]
  const float* scales;   // [rows, blocks]
  const int32_t* sums;   // [rows, blocks] of codes
  int64_t rows, blocks;
  const uint8_t* panel;  // [blocks, BlockBytes]
  const float* bias;     // [columns] or null
  bool accumulate;
  float* out;
  int64_t out_stride;
  int64_t columns;  // at most 32 of the panel are wanted
};

// Rows of e4m3 codes (kernels/core/e4m3.h), each row or each column with a power of two.
struct E4M3Block {
  const uint8_t* codes;  // [rows, columns]
  const int8_t* exponents;
  int rows, columns;  // at most 64 columns that have exponents
  bool by_column;
};

struct IsaKernels {
  const char* name;
  void (*attend_page_f32)(const PageTile<float>&);
  void (*attend_page_f64)(const PageTile<double>&);
  void (*gemm_panel_f32)(const GemmPanel<float>&);
  void (*gemm_panel_f64)(const GemmPanel<double>&);
  // Rounds a row for BlockPanel, to whole blocks. A block with a NaN or infinity becomes NaN.
  void (*round_row)(const float* row, int64_t count, int16_t* codes, float* scales, int32_t* sums);
  void (*multiply_q8)(const BlockPanel&);
  void (*multiply_q4)(const BlockPanel&);
  // One panel of `blocks` blocks in bf16: for each block [16, 32, 2], pairs of inputs side by side.
  void (*widen_q8)(const uint8_t* panel, int64_t blocks, uint16_t* bf16);
  void (*widen_q4)(const uint8_t* panel, int64_t blocks, uint16_t* bf16);
  void (*widen)(const uint16_t* bf16, int64_t count, float* out);
  void (*widen_e4m3)(const E4M3Block&, int64_t out_stride, float* out);
  void (*narrow)(const float* in, int64_t count, uint16_t* bf16);  // round to nearest even
  // out = gate * sigmoid(gate) * x, and out = sigmoid(gate) * x; out may be x.
  void (*silu_mul)(const float* gate, const float* x, int64_t count, float* out);
  void (*sigmoid_mul)(const float* gate, const float* x, int64_t count, float* out);
  // out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t count, float eps, float* out);
};

// The best set that this machine supports.
const IsaKernels& SelectIsaKernels();

namespace isa_portable {
extern const IsaKernels kKernels;
}
namespace isa_avx2 {
extern const IsaKernels kKernels;
}
namespace isa_avx512 {
extern const IsaKernels kKernels;
}

}  // namespace fox
