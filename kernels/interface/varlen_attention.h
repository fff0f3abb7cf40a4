// Forgetting attention over arrays of queries, keys and values, as training needs it: forward and
// backward, batched or packed (varlen) sequences, grouped-query heads. The server attends over
// pages (Ops::Attention in ops.h); both compute
//   s_ij = scale q_i.k_j + c_i - c_j,  c_i = sum of log f up to i,
//   out_i = sum_j exp(s_ij) v_j / Z_i,  Z_i = exp(sink) + sum_j exp(s_ij)
// over j <= i of the same sequence (Lin et al., Forgetting Transformer, section 3).
#pragma once

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/paging/acp.h"

namespace fox {

// An array [batch, tokens, heads, head_dim], or without the last for gates; strides in elements,
// head_dim contiguous. Memory of the backend that is called.
struct VarlenView {
  void* data = nullptr;
  int64_t batch_stride = 0, token_stride = 0, head_stride = 0;

  template <typename T>
  FOX_HOST_DEVICE T* At(int64_t row, int64_t token, int64_t head) const {
    return static_cast<T*>(data) + row * batch_stride + token * token_stride + head * head_stride;
  }
};

// Sequence s holds tokens [begin[s], end[s]) of batch row s, or of row 0 if packed; all of row s if
// both are null. Tokens of no sequence get zeros in every output.
struct VarlenSequences {
  int count = 0;
  const int32_t* begin = nullptr;  // [count], memory of the backend
  const int32_t* end = nullptr;    // [count]
  bool packed = false;             // all in batch row 0, which they fill in order, without overlap
};

struct VarlenAttentionParams {
  int batch = 0, tokens = 0;  // rows, and tokens of one
  int q_heads = 0, kv_heads = 0, head_dim = 0;
  VarlenSequences seqs;
  double scale = 0;      // of q.k, natural units: 1 / sqrt(head_dim) if nothing else is wanted
  VarlenView q, k, v;    // CUDA: bf16
  VarlenView log_fgate;  // float32 [batch, tokens, q_heads], at most 0
  // [q_heads], logits of a key without a value that does not decay, or null: none.
  const float* sink = nullptr;
  VarlenView out;  // as q

  // Selects the pairs that are pruned, per (sequence, query head):
  //   kPaper      pairs of a query tile and a key page whose decay c_i - c_j, at the tile's first
  //               row and the page's last key, is below threshold
  //   kCertified  pages whose total weight is below exp(log_eps) by acp.md 2b, with logits bounded
  //               by max_query_norm * |k_j| * scale
  AcpMode acp = AcpMode::kOff;
  const float* threshold = nullptr;       // [count, q_heads], kPaper
  const float* max_query_norm = nullptr;  // [count, q_heads], kCertified
  double log_eps = -10;
  // A bound on |scale q_i.k_j|, [count, q_heads], or null: unknown. If it is small, the rows'
  // maxima are not tracked; logits beyond it may overflow.
  const float* max_logit = nullptr;

  // Backward only. Gradients of out and of the inputs, shapes and dtypes as theirs.
  VarlenView d_out, dq, dk, dv, d_log_fgate;
  float* d_sink = nullptr;     // [q_heads], where sink is not null
  bool deterministic = false;  // equal bits in every run; sums in one fixed order
};

}  // namespace fox
