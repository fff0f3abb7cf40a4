// The forward pass, top to bottom. Read kernels/ops.h for what each operation does.
#include "models/fox_model.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace fox {
namespace {

MatrixView View(const Buffer& buffer, DType dtype, int64_t rows, int64_t cols) {
  return {buffer.data(), dtype, rows, cols, cols};
}

int64_t NormSumsOf(const ModelConfig& c) {
  return (c.hidden_size + NormedRows::kSumCols - 1) / NormedRows::kSumCols;
}

}  // namespace

Activations::Activations(const FoxWeights& weights, Ops& ops, int64_t rows, int64_t logit_rows)
    : max_rows(rows),
      max_logit_rows(logit_rows),
      activation_dtype(ops.ActivationDType(weights.residual_dtype)) {
  const ModelConfig& c = weights.config;
  const auto allocate = [&](int64_t n, int64_t cols, DType dtype) {
    return ops.Allocate(static_cast<size_t>(n * cols) * SizeOf(dtype));
  };
  x = allocate(rows, c.hidden_size, weights.residual_dtype);
  projection = allocate(rows, weights.columns.stride(activation_dtype), activation_dtype);
  o = allocate(rows, c.hidden_size, activation_dtype);
  gate_up = allocate(rows, 2 * c.intermediate_size, activation_dtype);
  norm_sums = ops.Allocate(static_cast<size_t>(rows * NormSumsOf(c)) * sizeof(float));
  scratch = allocate(rows, std::max(c.hidden_size, c.intermediate_size), activation_dtype);
  last = allocate(logit_rows, c.hidden_size, weights.residual_dtype);
  logits = allocate(logit_rows, c.vocab_size, weights.residual_dtype);
}

size_t Activations::Bytes(const ModelConfig& c, DType residual_dtype, DType activation_dtype,
                          int64_t rows, int64_t logit_rows) {
  const int64_t activation_cols = ColumnsOf(c).stride(activation_dtype) + c.hidden_size +
                                  2 * c.intermediate_size +
                                  std::max(c.hidden_size, c.intermediate_size);
  return static_cast<size_t>(rows * c.hidden_size + logit_rows * (c.hidden_size + c.vocab_size)) *
             SizeOf(residual_dtype) +
         static_cast<size_t>(rows * activation_cols) * SizeOf(activation_dtype) +
         static_cast<size_t>(rows * NormSumsOf(c)) * sizeof(float);
}

MatrixView FoxModel::Forward(const BatchView& batch, const int64_t* logit_rows,
                             int64_t num_logit_rows, AcpMode acp, const PagedKv& kv,
                             const ForwardCounters& counters, Stream stream) {
  const ModelConfig& c = weights_.config;
  const DType residual_dtype = weights_.residual_dtype, activation_dtype = act_.activation_dtype;
  FOX_CHECK(batch.num_rows <= act_.max_rows && num_logit_rows <= act_.max_logit_rows);
  const MatrixView x = View(act_.x, residual_dtype, batch.num_rows, c.hidden_size);
  const MatrixView o = View(act_.o, activation_dtype, batch.num_rows, c.hidden_size);
  const MatrixView table{weights_.embeddings.data(), weights_.embeddings_dtype, c.vocab_size,
                         c.hidden_size, c.hidden_size};

  ops_.BeginStep(batch, kv, stream);
  ops_.Embed(batch, table, x, stream);
  const bool fuses = Fuses(batch.num_rows);
  for (int n = 0; n < c.num_layers; ++n) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(n)];
    LinearParams project = Normed(x, w.attn_norm, *w.projection, fuses && n > 0);
    project.bias = w.projection_bias.data();
    project.out = Projection(batch.num_rows);
    ops_.Linear(project, stream);
    Attend(n, batch, acp, kv, counters, stream);
    LinearParams mix{.in = o,
                     .transform = OutputGateOf(w, batch.num_rows),
                     .weight = *w.o,
                     .accumulate = true,
                     .out = x};
    if (fuses) mix.leaves = Left(w.mlp_norm, batch.num_rows);
    ops_.Linear(mix, stream);
    const bool last = n + 1 == c.num_layers;
    Mlp(w, x, last ? nullptr : &weights_.layers[static_cast<size_t>(n) + 1].attn_norm, stream);
  }
  ops_.Evict(batch,
             {acp, weights_.self_logit_bound.as<double>(), weights_.max_logit_bound.as<double>(),
              counters.pages_evicted, counters.max_log_evicted_mass},
             kv, stream);

  const MatrixView last = View(act_.last, residual_dtype, num_logit_rows, c.hidden_size);
  const MatrixView logits = View(act_.logits, residual_dtype, num_logit_rows, c.vocab_size);
  ops_.GatherRows(x, logit_rows, last, stream);
  ops_.Linear({.in = last,
               .transform = Norm(weights_.final_norm, num_logit_rows),
               .weight = *weights_.lm_head,
               .out = logits},
              stream);
  return logits;
}

// x += down(act(gate) * up), of the normed rows; then the next layer's norm, if there is one.
void FoxModel::Mlp(const LayerWeights& w, const MatrixView& x, const Buffer* next_norm,
                   Stream stream) {
  const int64_t inner = weights_.config.intermediate_size;
  const bool fuses = Fuses(x.rows);
  const MatrixView y = View(act_.gate_up, act_.activation_dtype, x.rows, fuses ? inner : 2 * inner);
  LinearParams gate_up = Normed(x, w.mlp_norm, *w.gate_up, fuses);
  gate_up.out = y;
  LinearParams down{.in = y, .weight = *w.down, .accumulate = true, .out = x};
  if (fuses) {
    gate_up.gated = HiddenActivation();
    if (next_norm != nullptr) down.leaves = Left(*next_norm, x.rows);
  } else {
    down.transform = GatedAct(x.rows);
  }
  ops_.Linear(gate_up, stream);
  ops_.Linear(down, stream);
}

// Whether products take over the transforms around them. Then attention's output is free for what
// one leaves to the next once it has been transformed.
bool FoxModel::Fuses(int64_t rows) const {
  const bool transforms =
      OutputGateOf(weights_.layers.front(), rows).kind != InputTransform::Kind::kNone;
  return transforms && ops_.fuses_products(rows);
}

// A product over the normed rows of x. `left`: the product before has normed them.
LinearParams FoxModel::Normed(const MatrixView& x, const Buffer& norm, const PackedWeight& weight,
                              bool left) const {
  LinearParams params{.in = x, .weight = weight, .out = {}};
  if (left) {
    params.takes = Left(norm, x.rows);
  } else {
    params.transform = Norm(norm, x.rows);
  }
  return params;
}

NormedRows FoxModel::Left(const Buffer& norm, int64_t rows) const {
  const ModelConfig& c = weights_.config;
  return {.rows = View(act_.o, act_.activation_dtype, rows, c.hidden_size),
          .sums = act_.norm_sums.as<float>(),
          .weight = norm.data(),
          .eps = c.norm_eps};
}

MatrixView FoxModel::Projection(int64_t rows) const {
  const ProjectionColumns& columns = weights_.columns;
  return {act_.projection.data(), act_.activation_dtype, rows, columns.total,
          columns.stride(act_.activation_dtype)};
}

InputTransform FoxModel::Norm(const Buffer& weight, int64_t rows) const {
  return {.kind = InputTransform::Kind::kRmsNorm,
          .weight = weight.data(),
          .eps = weights_.config.norm_eps,
          .scratch = Scratch(rows, weights_.config.hidden_size)};
}

// The attention output's own norm and gate, on its way into the output projection.
InputTransform FoxModel::OutputGateOf(const LayerWeights& w, int64_t rows) const {
  const ModelConfig& c = weights_.config;
  const int64_t column = weights_.columns.ogate;
  if (w.output_norm.data() == nullptr && c.output_gate == OutputGate::kNone) return {};
  return {.kind = InputTransform::Kind::kOutputGate,
          .weight = w.output_norm.data(),
          .eps = c.norm_eps,
          .head_dim = c.head_dim,
          .gate = column < 0 ? MatrixView{} : Projection(rows).Columns(column, c.hidden_size),
          .act = c.output_gate == OutputGate::kSilu ? Activation::kSilu : Activation::kSigmoid,
          .scratch = Scratch(rows, c.hidden_size)};
}

Activation FoxModel::HiddenActivation() const {
  return weights_.config.hidden_act == HiddenAct::kSilu ? Activation::kSilu : Activation::kSigmoid;
}

InputTransform FoxModel::GatedAct(int64_t rows) const {
  return {.kind = InputTransform::Kind::kGatedAct,
          .act = HiddenActivation(),
          .scratch = Scratch(rows, weights_.config.intermediate_size)};
}

MatrixView FoxModel::Scratch(int64_t rows, int64_t cols) const {
  return View(act_.scratch, act_.activation_dtype, rows, cols);
}

// Projections to attention output.
void FoxModel::Attend(int layer, const BatchView& batch, AcpMode acp, const PagedKv& kv,
                      const ForwardCounters& counters, Stream stream) {
  const ModelConfig& c = weights_.config;
  const ProjectionColumns& columns = weights_.columns;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const MatrixView projection = Projection(batch.num_rows);
  ops_.Append(batch,
              {.layer = layer,
               .projection = projection,
               .q_column = columns.q,
               .k_column = columns.k,
               .v_column = columns.v,
               .k_shift_column = columns.k_shift,
               .v_shift_column = columns.v_shift,
               .fgate_column = columns.fgate,
               .fgate_bias = w.fgate_bias.data(),
               .has_gate = c.forget_gate != ForgetGate::kNone,
               .min_log_gate = w.bound.min_log_gate(),
               .q_norm = w.q_norm.data(),
               .k_norm = w.k_norm.data(),
               .qk_norm_eps = kQkNormEps,
               .rope_frequency = weights_.rope_frequency.as<double>(),
               .bound = w.bound.view(),
               .acp = acp},
              kv, stream);
  ops_.Attention(batch,
                 {.layer = layer,
                  .q = projection.Columns(columns.q, c.hidden_size),
                  .out = View(act_.o, act_.activation_dtype, batch.num_rows, c.hidden_size),
                  .acp = acp,
                  .bound = w.bound.view(),
                  .blocks_total = counters.blocks_total,
                  .blocks_pruned = counters.blocks_pruned},
                 kv, stream);
}

}  // namespace fox
