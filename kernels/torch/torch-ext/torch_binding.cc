// The operators fox::forward and fox::backward on CUDA, through LibTorch's stable ABI: one binary
// serves every PyTorch from TORCH_TARGET_VERSION on. Schemas, shapes and gradients are defined in
// fox_attention/operators.py; this file turns tensors into views and calls the kernels on
// PyTorch's current stream. Nothing waits for the device.
#include <cuda_runtime_api.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/cuda/attention/varlen_attention.h"
#include "kernels/interface/varlen_attention.h"

#ifdef TORCH_EXTENSION_NAME  // built by the builder of the HuggingFace hub
#include "registration.h"
#define FOX_IMPLEMENT_OPERATORS(library) \
  STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, library)
#else
#define FOX_IMPLEMENT_OPERATORS(library) STABLE_TORCH_LIBRARY_IMPL(fox, CUDA, library)
#endif

namespace fox {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Bytes of a forward call's state; operators.py has the same formula, for shapes without a device.
int64_t StateBytes(int64_t batch, int64_t tokens, int64_t heads, int64_t sequences) {
  const int64_t tiles = batch * (tokens / cuda::kVarlenTile) + sequences;
  return tiles * (heads * 1088 + 32) + 4096;
}

Tensor Copy(const Tensor& x) {
  Tensor copy = torch::stable::new_empty(x, x.sizes());
  return torch::stable::copy_(copy, x);
}

// For tensors that the kernels load by bulk copies of 16 bytes; strides of dimensions of size 1 do
// not matter.
bool IsLoadable(const Tensor& x) {
  if (reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 != 0 || x.stride(3) != 1) return false;
  for (int64_t dim = 0; dim < 3; ++dim) {
    if (x.size(dim) > 1 && (x.stride(dim) <= 0 || x.stride(dim) % 8 != 0)) return false;
  }
  return true;
}

Tensor Loadable(const Tensor& x) { return IsLoadable(x) ? x : Copy(x); }

Tensor Contiguous(const Tensor& x) { return x.is_contiguous() ? x : Copy(x); }

VarlenView View(const Tensor& x) {
  VarlenView view;
  view.data = x.data_ptr();
  view.batch_stride = x.stride(0);
  view.token_stride = x.stride(1);
  view.head_stride = x.stride(2);
  return view;
}

void CheckTensor(const char* name, const Tensor& x, ScalarType dtype, int64_t dims,
                 int32_t device) {
  STD_TORCH_CHECK(x.is_cuda() && x.get_device_index() == device, name,
                  " must be on the CUDA device of q");
  STD_TORCH_CHECK(x.scalar_type() == dtype, name, " has the wrong dtype");
  STD_TORCH_CHECK(x.dim() == dims, name, " must have ", dims, " dimensions, not ", x.dim());
}

// The inputs of both operators, kept for as long as the parameters point into them.
struct Inputs {
  Tensor q, k, v, log_fgate;
  OptionalTensor seq_begin, seq_end, threshold, max_query_norm, sinks;
  // One per batch row if their begins are not given.
  int64_t sequences() const { return seq_begin ? seq_begin->size(0) : q.size(0); }
};

const float* PerHead(const char* name, OptionalTensor& x, const Inputs& inputs) {
  if (!x) return nullptr;
  CheckTensor(name, *x, ScalarType::Float, 2, inputs.q.get_device_index());
  STD_TORCH_CHECK(x->size(0) == inputs.sequences() && x->size(1) == inputs.q.size(2), name,
                  " must have shape (sequences, query heads)");
  x = Contiguous(*x);
  return static_cast<const float*>(x->data_ptr());
}

void CheckShapes(const Inputs& inputs, bool packed) {
  const Tensor &q = inputs.q, &k = inputs.k, &v = inputs.v, &gates = inputs.log_fgate;
  const int32_t device = q.get_device_index();
  CheckTensor("q", q, ScalarType::BFloat16, 4, device);
  CheckTensor("k", k, ScalarType::BFloat16, 4, device);
  CheckTensor("v", v, ScalarType::BFloat16, 4, device);
  CheckTensor("log_fgate", gates, ScalarType::Float, 3, device);
  STD_TORCH_CHECK(inputs.seq_begin.has_value() == inputs.seq_end.has_value() &&
                      (inputs.seq_begin.has_value() || !packed),
                  "seq_begin and seq_end go together, and packed sequences need them");
  if (inputs.seq_begin) {
    CheckTensor("seq_begin", *inputs.seq_begin, ScalarType::Int, 1, device);
    CheckTensor("seq_end", *inputs.seq_end, ScalarType::Int, 1, device);
    STD_TORCH_CHECK(inputs.seq_begin->size(0) == inputs.seq_end->size(0) &&
                        (packed ? q.size(0) == 1 : q.size(0) == inputs.sequences()),
                    "one sequence a batch row, or a batch of 1 with packed ones");
  }
  for (int64_t dim = 0; dim < 4; ++dim) {
    STD_TORCH_CHECK(k.size(dim) == v.size(dim), "k and v must have one shape");
    STD_TORCH_CHECK(dim == 2 || q.size(dim) == k.size(dim),
                    "q, k and v must agree in batch, tokens and head_dim");
    STD_TORCH_CHECK(dim == 3 || q.size(dim) == gates.size(dim),
                    "log_fgate must have the batch, tokens and heads of q");
  }
  STD_TORCH_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0,
                  "the number of query heads must be a multiple of that of kv heads");
  STD_TORCH_CHECK(q.size(3) == 32 || q.size(3) == 64 || q.size(3) == 128,
                  "head_dim must be 32, 64 or 128, not ", q.size(3));
  STD_TORCH_CHECK(q.size(0) * q.size(1) <= std::numeric_limits<int32_t>::max(),
                  "too many tokens: ", q.size(0) * q.size(1));
}

// Checks the inputs, copies inputs that the kernels cannot load as they are, and describes them
// all.
VarlenAttentionParams MakeParams(Inputs& inputs, bool packed, double scale, double log_eps) {
  CheckShapes(inputs, packed);
  inputs.q = Loadable(inputs.q);
  inputs.k = Loadable(inputs.k);
  inputs.v = Loadable(inputs.v);
  VarlenAttentionParams params;
  params.batch = static_cast<int>(inputs.q.size(0));
  params.tokens = static_cast<int>(inputs.q.size(1));
  params.q_heads = static_cast<int>(inputs.q.size(2));
  params.kv_heads = static_cast<int>(inputs.k.size(2));
  params.head_dim = static_cast<int>(inputs.q.size(3));
  params.seqs.count = static_cast<int>(inputs.sequences());
  if (inputs.seq_begin) {
    inputs.seq_begin = Contiguous(*inputs.seq_begin);
    inputs.seq_end = Contiguous(*inputs.seq_end);
    params.seqs.begin = static_cast<const int32_t*>(inputs.seq_begin->data_ptr());
    params.seqs.end = static_cast<const int32_t*>(inputs.seq_end->data_ptr());
  }
  params.seqs.packed = packed;
  params.scale = scale;
  params.q = View(inputs.q);
  params.k = View(inputs.k);
  params.v = View(inputs.v);
  params.log_fgate = View(inputs.log_fgate);
  params.threshold = PerHead("threshold", inputs.threshold, inputs);
  params.max_query_norm = PerHead("max_query_norm", inputs.max_query_norm, inputs);
  if (inputs.sinks) {
    CheckTensor("sinks", *inputs.sinks, ScalarType::Float, 1, inputs.q.get_device_index());
    STD_TORCH_CHECK(inputs.sinks->size(0) == params.q_heads,
                    "sinks must have shape (query heads,)");
    inputs.sinks = Contiguous(*inputs.sinks);
    params.sink = static_cast<const float*>(inputs.sinks->data_ptr());
  }
  STD_TORCH_CHECK(params.threshold == nullptr || params.max_query_norm == nullptr,
                  "threshold and max_query_norm exclude each other");
  if (params.threshold != nullptr) params.acp = AcpMode::kPaper;
  if (params.max_query_norm != nullptr) params.acp = AcpMode::kCertified;
  params.log_eps = log_eps;
  return params;
}

cudaStream_t CurrentStream(int32_t device) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

void CheckLaunch(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // reads and clears it, else the next kernel of PyTorch is blamed
  STD_TORCH_CHECK(false, "fox_attention ", what, ": ", cudaGetErrorString(error));
}

Tensor NewBytes(const Tensor& like, int64_t count) {
  return torch::stable::new_empty(like, {count}, ScalarType::Byte);
}

std::tuple<Tensor, Tensor> Forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& log_fgate, const OptionalTensor& seq_begin,
                                   const OptionalTensor& seq_end, bool packed,
                                   const OptionalTensor& threshold,
                                   const OptionalTensor& max_query_norm, double scale,
                                   double log_eps, bool /*deterministic: it always is*/,
                                   OptionalTensor max_logit, const OptionalTensor& sinks) {
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  Inputs inputs{q, k, v, log_fgate, seq_begin, seq_end, threshold, max_query_norm, sinks};
  VarlenAttentionParams params = MakeParams(inputs, packed, scale, log_eps);
  params.max_logit = PerHead("max_logit", max_logit, inputs);
  const Tensor out = torch::stable::new_empty(q, q.sizes());
  const int64_t bytes = StateBytes(q.size(0), q.size(1), q.size(2), inputs.sequences());
  const Tensor state = NewBytes(q, bytes);
  if (q.numel() == 0) return {out, state};
  STD_TORCH_CHECK(cuda::VarlenBytes<cuda::VarlenState>(params) <= static_cast<size_t>(bytes),
                  "the state needs more bytes than StateBytes says");
  params.out = View(out);
  CheckLaunch("forward",
              cuda::VarlenForward(params, state.data_ptr(), CurrentStream(q.get_device_index())));
  return {out, state};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> Backward(
    const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_fgate,
    const Tensor& out, const Tensor& state, const OptionalTensor& seq_begin,
    const OptionalTensor& seq_end, bool packed, const OptionalTensor& threshold,
    const OptionalTensor& max_query_norm, double scale, double log_eps, bool deterministic,
    const OptionalTensor& sinks) {
  const int32_t device = q.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  Inputs inputs{q, k, v, log_fgate, seq_begin, seq_end, threshold, max_query_norm, sinks};
  VarlenAttentionParams params = MakeParams(inputs, packed, scale, log_eps);
  CheckTensor("d_out", d_out, ScalarType::BFloat16, 4, device);
  CheckTensor("out", out, ScalarType::BFloat16, 4, device);
  CheckTensor("state", state, ScalarType::Byte, 1, device);
  const Tensor dq = torch::stable::new_empty(q, q.sizes());
  const Tensor dk = torch::stable::new_empty(k, k.sizes());
  const Tensor dv = torch::stable::new_empty(v, v.sizes());
  const Tensor d_log_fgate = torch::stable::new_empty(log_fgate, log_fgate.sizes());
  const Tensor d_sinks = torch::stable::new_zeros(log_fgate, {sinks ? int64_t{params.q_heads} : 0});
  if (q.numel() == 0) return {dq, dk, dv, d_log_fgate, d_sinks};
  STD_TORCH_CHECK(
      static_cast<size_t>(state.numel()) >= cuda::VarlenBytes<cuda::VarlenState>(params),
      "state is not that of a forward call with these shapes");
  const Tensor d_out_loadable = Loadable(d_out), out_loadable = Loadable(out);
  const Tensor scratch =
      NewBytes(q, static_cast<int64_t>(cuda::VarlenBytes<cuda::VarlenGradients>(params)));
  params.out = View(out_loadable);
  params.d_out = View(d_out_loadable);
  params.dq = View(dq);
  params.dk = View(dk);
  params.dv = View(dv);
  params.d_log_fgate = View(d_log_fgate);
  if (sinks) params.d_sink = static_cast<float*>(d_sinks.data_ptr());
  params.deterministic = deterministic;
  CheckLaunch("backward", cuda::VarlenBackward(params, state.data_ptr(), scratch.data_ptr(),
                                               CurrentStream(device)));
  return {dq, dk, dv, d_log_fgate, d_sinks};
}

}  // namespace

FOX_IMPLEMENT_OPERATORS(library) {
  library.impl("forward", TORCH_BOX(&Forward));
  library.impl("backward", TORCH_BOX(&Backward));
}

}  // namespace fox

#ifdef TORCH_EXTENSION_NAME
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
#endif
