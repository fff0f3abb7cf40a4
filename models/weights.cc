// From a checked checkpoint to packed weights: projections that read the same input are fused into
// one, norms are widened, shared QK-norm vectors and gates of kv heads are repeated per head.
#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "kernels/core/check.h"
#include "kernels/core/thread_pool.h"
#include "kernels/core/weight_format.h"

namespace fox {
namespace {

// The rows of several tensors of one width, stacked in host memory as float64, float32 or bf16.
class RowStack {
 public:
  RowStack(int64_t cols, DType dtype) : cols_(cols), dtype_(dtype) {}

  // A stack of weights to pack. It is bf16 if all parts are, else of the residual dtype. Each row
  // of the last part is repeated `times` times.
  RowStack(int64_t cols, DType residual_dtype, const std::vector<const HostTensor*>& parts,
           int times = 1)
      : cols_(cols), dtype_(DType::kBF16) {
    size_t elements = 0;
    for (const HostTensor* part : parts) {
      if (part->empty()) continue;
      if (part->dtype != DType::kBF16) dtype_ = residual_dtype;
      elements += static_cast<size_t>(part->size());
    }
    bytes_.reserve(elements * SizeOf(dtype_));
    for (const HostTensor* part : parts) Add(*part, part == parts.back() ? times : 1);
  }

  // Adds each row `times` times.
  void Add(const HostTensor& tensor, int times = 1) {
    if (tensor.empty()) return;
    FOX_CHECK(times >= 1 && tensor.size() % cols_ == 0);
    FOX_CHECK(dtype_ != DType::kBF16 || tensor.dtype == DType::kBF16);
    const int64_t step = times == 1 ? tensor.size() : cols_;
    for (int64_t i = 0; i < tensor.size() * times; i += step) {
      const int64_t first = i / (step * times) * step;
      if (dtype_ == DType::kBF16) {
        const std::byte* from = tensor.data + first * static_cast<int64_t>(SizeOf(dtype_));
        bytes_.insert(bytes_.end(), from, from + step * static_cast<int64_t>(SizeOf(dtype_)));
        continue;
      }
      const size_t before = bytes_.size();
      AddZeros(step);
      if (dtype_ == DType::kF64) {
        ReadElements(tensor, first, step, reinterpret_cast<double*>(bytes_.data() + before));
      } else {
        ReadElements(tensor, first, step, reinterpret_cast<float*>(bytes_.data() + before));
      }
    }
  }

  // Adds zeros up to `rows` rows.
  void PadTo(int64_t rows) {
    AddZeros(rows * cols_ - static_cast<int64_t>(bytes_.size() / SizeOf(dtype_)));
  }

  // Rounds all rows except the last `kept` ones.
  std::unique_ptr<PackedWeight> Pack(Ops& ops, Quantization quantization, int64_t rows,
                                     int64_t kept = 0) {
    FOX_CHECK(bytes_.size() == static_cast<size_t>(rows * cols_) * SizeOf(dtype_));
    FOX_CHECK(kept >= 0 && kept <= rows);
    const MatrixView view{bytes_.data(), dtype_, rows, cols_, cols_};
    if (quantization == Quantization::kNone) return ops.Pack(view);
    return ops.PackRounded(view, rows - kept, FormatOf(quantization));
  }
  Buffer Upload(Ops& ops) const { return fox::Upload(bytes_, ops); }

 private:
  void AddZeros(int64_t count) {
    FOX_CHECK(count >= 0);
    bytes_.insert(bytes_.end(), static_cast<size_t>(count) * SizeOf(dtype_), std::byte{0});
  }

  int64_t cols_;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

// A copy of a vector in which each part of `size` elements is repeated `times` times.
Buffer UploadVector(const HostTensor& tensor, Ops& ops, DType dtype, int64_t size = 1,
                    int times = 1) {
  RowStack stack(size, dtype);
  stack.Add(tensor, times);
  return stack.Upload(ops);
}

// A layer with the weights of queries, keys and values rounded, as its products will have them: the
// bounds depend on no other matrix.
struct RoundedLayer {
  RoundedLayer(const LayerTensors& original, WeightFormat format, ThreadPool& pool)
      : tensors(original) {
    for (HostTensor* tensor : {&tensors.q_proj, &tensors.k_proj, &tensors.v_proj}) {
      const int64_t count = tensor->size(), cols = tensor->shape.back();
      FOX_CHECK(tensor->shape.size() == 2);
      std::vector<float>& rounded = memory.emplace_back(static_cast<size_t>(count));
      pool.ForEach(count / cols, count >= kParallelElements, [&](int64_t n) {
        ReadElements(*tensor, n * cols, cols, rounded.data() + n * cols);
        RoundRow(format, rounded.data() + n * cols, cols);
      });
      *tensor = {reinterpret_cast<const std::byte*>(rounded.data()), DType::kF32, tensor->shape};
    }
  }

  LayerTensors tensors;
  std::vector<std::vector<float>> memory;
};

// Rounds a matrix of the vocabulary, without a copy of it.
std::unique_ptr<PackedWeight> PackQ8(const HostTensor& table, Ops& ops) {
  const int64_t rows = table.shape[0], cols = table.shape[1];
  void* data = const_cast<std::byte*>(table.data);  // a view has no form for constant memory
  return ops.PackRounded({data, table.dtype, rows, cols, cols}, rows, WeightFormat::kQ8);
}

Buffer ProjectionBias(const LayerTensors& layer, const ModelConfig& config,
                      const ProjectionColumns& columns, Ops& ops, DType residual_dtype) {
  if (!config.qkv_bias) return {};
  RowStack stack(1, residual_dtype);
  stack.Add(layer.q_bias);
  stack.Add(layer.k_bias);
  stack.Add(layer.v_bias);
  stack.PadTo(columns.total);
  return stack.Upload(ops);
}

LayerWeights LoadLayer(const LayerTensors& layer, const HostQueryBound& bound,
                       const ModelConfig& config, const ProjectionColumns& columns, Ops& ops,
                       DType residual_dtype, Quantization quantization) {
  LayerWeights w;
  w.attn_norm = UploadVector(layer.attn_norm, ops, residual_dtype);
  FOX_CHECK(config.num_heads % config.num_gates() == 0);
  const int per_gate = config.num_heads / config.num_gates();
  const int64_t attention = (config.output_gate ? 2 : 1) * config.q_size() + 2 * config.kv_size();
  RowStack projection(config.hidden_size, residual_dtype,
                      {&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.ogate_proj,
                       &layer.k_shift_proj, &layer.v_shift_proj, &layer.fgate_proj},
                      per_gate);
  projection.PadTo(columns.total);
  w.projection = projection.Pack(ops, quantization, columns.total, columns.total - attention);
  w.projection_bias = ProjectionBias(layer, config, columns, ops, residual_dtype);
  w.fgate_bias = UploadVector(layer.fgate_bias, ops, residual_dtype, 1, per_gate);
  const bool shared = config.qk_norm && !config.qk_norm_per_head;
  const int d = config.head_dim;
  w.q_norm = UploadVector(layer.q_norm, ops, residual_dtype, d, shared ? config.num_heads : 1);
  w.k_norm = UploadVector(layer.k_norm, ops, residual_dtype, d, shared ? config.num_kv_heads : 1);
  w.q_cap = UploadVector(layer.q_cap, ops, DType::kF32);
  w.k_cap = UploadVector(layer.k_cap, ops, DType::kF32);
  w.sinks = UploadVector(layer.sinks, ops, DType::kF32);
  w.output_norm = UploadVector(layer.output_norm, ops, residual_dtype);
  w.o = RowStack(config.q_size(), residual_dtype, {&layer.o_proj})
            .Pack(ops, quantization, config.hidden_size);
  w.mlp_norm = UploadVector(layer.mlp_norm, ops, residual_dtype);
  std::vector<const HostTensor*> gate_up;
  for (const HostTensor& part : layer.gate_up) gate_up.push_back(&part);
  w.gate_up = RowStack(config.hidden_size, residual_dtype, gate_up)
                  .Pack(ops, quantization, 2 * config.intermediate_size);
  w.down = RowStack(config.intermediate_size, residual_dtype, {&layer.down_proj})
               .Pack(ops, quantization, config.hidden_size);
  w.bound = DeviceQueryBound(bound, ops);
  return w;
}

}  // namespace

ProjectionColumns ColumnsOf(const ModelConfig& config) {
  ProjectionColumns columns;
  const auto take = [&](int64_t count) {
    const int64_t first = columns.total;
    columns.total += count;
    return first;
  };
  columns.q = take(config.q_size());
  columns.k = take(config.kv_size());
  columns.v = take(config.kv_size());
  if (config.output_gate) columns.ogate = take(config.q_size());
  if (config.k_shift) columns.k_shift = take(config.num_kv_heads);
  if (config.v_shift) columns.v_shift = take(config.num_kv_heads);
  if (config.forget_gate == ForgetGate::kFull) columns.fgate = take(config.num_heads);
  columns.total = (columns.total + kColumnsMultiple - 1) / kColumnsMultiple * kColumnsMultiple;
  return columns;
}

WeightFormat FormatOf(Quantization quantization) {
  FOX_CHECK(quantization != Quantization::kNone);
  if (quantization == Quantization::kFp8) return WeightFormat::kE4M3;
  return quantization == Quantization::kQ8 ? WeightFormat::kQ8 : WeightFormat::kQ4;
}

size_t FoxWeights::embedding_bytes() const {
  return own_embedding_blocks ? own_embedding_blocks->bytes() : embeddings.bytes();
}

size_t FoxWeights::linear_bytes() const {
  size_t bytes = lm_head->bytes();
  for (const LayerWeights& layer : layers) {
    bytes +=
        layer.projection->bytes() + layer.o->bytes() + layer.gate_up->bytes() + layer.down->bytes();
  }
  return bytes;
}

FoxWeights LoadWeights(const Checkpoint& checkpoint, Ops& ops, DType residual_dtype,
                       Quantization quantization, DType kv_dtype, const LoadProgress& progress) {
  FOX_CHECK(residual_dtype == DType::kF64 || residual_dtype == DType::kF32);
  FoxWeights weights;
  const ModelConfig& config = checkpoint.config();
  weights.config = config;
  weights.quantization = quantization;
  weights.residual_dtype = residual_dtype;
  weights.columns = ColumnsOf(config);
  const HostTensor& table = checkpoint.embeddings();
  if (IsBlocks(quantization)) {
    weights.lm_head = PackQ8(checkpoint.lm_head(), ops);
    const bool tied = table.data == checkpoint.lm_head().data;
    if (!tied) weights.own_embedding_blocks = PackQ8(table, ops);
  } else {
    weights.embeddings_dtype = table.dtype;
    weights.embeddings =
        Upload({table.data, static_cast<size_t>(table.size()) * SizeOf(table.dtype)}, ops);
    weights.lm_head = RowStack(config.hidden_size, residual_dtype, {&checkpoint.lm_head()})
                          .Pack(ops, Quantization::kNone, config.vocab_size);
  }
  const std::vector<double> frequencies = RopeFrequencies(config);
  weights.rope_frequency = Upload(std::as_bytes(std::span(frequencies)), ops);
  std::vector<double> self_logit_bound, max_logit_bound, max_norm_product, log_max_value;
  ThreadPool pool(quantization == Quantization::kNone ? 1 : StartThreads());
  for (int n = 0; n < config.num_layers; ++n) {
    if (progress) progress(n, config.num_layers);
    const LayerTensors& original = checkpoint.layers()[static_cast<size_t>(n)];
    std::optional<RoundedLayer> rounded;
    if (quantization != Quantization::kNone)
      rounded.emplace(original, FormatOf(quantization), pool);
    const LayerTensors& layer = rounded ? rounded->tensors : original;
    const HostQueryBound bound = MakeQueryBound(config, layer, kv_dtype, IsBlocks(quantization));
    self_logit_bound.insert(self_logit_bound.end(), bound.self_logit_bound.begin(),
                            bound.self_logit_bound.end());
    max_logit_bound.insert(max_logit_bound.end(), bound.max_logit_bound.begin(),
                           bound.max_logit_bound.end());
    max_norm_product.insert(max_norm_product.end(), bound.max_norm_product.begin(),
                            bound.max_norm_product.end());
    log_max_value.insert(log_max_value.end(), bound.log_max_value.begin(),
                         bound.log_max_value.end());
    weights.layers.push_back(
        LoadLayer(original, bound, config, weights.columns, ops, residual_dtype, quantization));
  }
  FOX_CHECK(self_logit_bound.size() == static_cast<size_t>(config.num_layers * config.num_heads));
  FOX_CHECK(max_logit_bound.size() == self_logit_bound.size());
  weights.self_logit_bound = Upload(std::as_bytes(std::span(self_logit_bound)), ops);
  weights.max_logit_bound = Upload(std::as_bytes(std::span(max_logit_bound)), ops);
  weights.max_norm_product = Upload(std::as_bytes(std::span(max_norm_product)), ops);
  weights.log_max_value = Upload(std::as_bytes(std::span(log_max_value)), ops);
  std::vector<QueryBound> bounds;
  for (const LayerWeights& layer : weights.layers) bounds.push_back(layer.bound.view());
  weights.bounds = Upload(std::as_bytes(std::span(bounds)), ops);
  weights.diagonal_bounds = std::all_of(bounds.begin(), bounds.end(), IsDiagonal);
  weights.final_norm = UploadVector(checkpoint.final_norm(), ops, residual_dtype);
  if (progress) progress(config.num_layers, config.num_layers);
  return weights;
}

}  // namespace fox
