// The forward pass, top to bottom. Read kernels/ops.h for what each operation does.
#include "models/fox_model.h"

#include <algorithm>
#include <array>

#include "kernels/core/check.h"

namespace fox {
namespace {

MatrixView View(const Buffer& buffer, DType dtype, int64_t rows, int64_t cols) {
  return {buffer.data(), dtype, rows, cols, cols};
}

// Of a row.
int64_t GateUpColumns(const ModelConfig& c, const Ops& ops) {
  return (ops.has_decode_family() ? 1 : 2) * c.intermediate_size;
}

int64_t ScratchColumns(const ModelConfig& c, const Ops& ops) {
  return ops.has_decode_family() ? c.hidden_size : std::max(c.hidden_size, c.intermediate_size);
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
  gate_up = allocate(rows, GateUpColumns(c, ops), activation_dtype);
  norm_sums =
      ops.Allocate(static_cast<size_t>(rows * NormedRows::SumsOf(c.hidden_size)) * sizeof(float));
  scratch = allocate(rows, ScratchColumns(c, ops), activation_dtype);
  last = allocate(logit_rows, c.hidden_size, weights.residual_dtype);
  logits = allocate(logit_rows, c.vocab_size, weights.residual_dtype);
}

size_t Activations::Bytes(const ModelConfig& c, DType residual_dtype, const Ops& ops, int64_t rows,
                          int64_t logit_rows) {
  const DType activation_dtype = ops.ActivationDType(residual_dtype);
  const int64_t activations = rows * (ColumnsOf(c).stride(activation_dtype) + c.hidden_size +
                                      GateUpColumns(c, ops) + ScratchColumns(c, ops));
  return static_cast<size_t>(rows * c.hidden_size + logit_rows * (c.hidden_size + c.vocab_size)) *
             SizeOf(residual_dtype) +
         static_cast<size_t>(activations) * SizeOf(activation_dtype) +
         static_cast<size_t>(rows * NormedRows::SumsOf(c.hidden_size)) * sizeof(float);
}

MatrixView FoxModel::Forward(const BatchView& batch, const int64_t* logit_rows,
                             int64_t num_logit_rows, AcpMode acp, const PagedKv& kv,
                             const ForwardCounters& counters, Stream stream) {
  const ModelConfig& c = weights_.config;
  const DType residual_dtype = weights_.residual_dtype;
  FOX_CHECK(batch.num_rows <= act_.max_rows && num_logit_rows <= act_.max_logit_rows);
  const MatrixView x = View(act_.x, residual_dtype, batch.num_rows, c.hidden_size);
  const MatrixView table{weights_.embeddings.data(), weights_.embeddings_dtype, c.vocab_size,
                         c.hidden_size, c.hidden_size};

  ops_.BeginStep(batch, kv, stream);
  ops_.Embed(batch, table, x, stream);
  const std::array<RowGroup, 2> groups = GroupsOf(batch);
  for (const RowGroup& rows : groups) {
    if (rows.count > 0) Project(0, rows, stream);
  }
  for (int n = 0; n < c.num_layers; ++n) {
    Attend(n, batch, acp, kv, counters, stream);
    for (const RowGroup& rows : groups) {
      if (rows.count > 0) MixAndMlp(n, rows, stream);
    }
  }
  ops_.Evict(batch,
             {acp, weights_.self_logit_bound.as<double>(), weights_.max_logit_bound.as<double>(),
              counters.pages_evicted, counters.max_log_evicted_mass},
             kv, stream);

  const MatrixView logits = View(act_.logits, residual_dtype, num_logit_rows, c.vocab_size);
  MatrixView last = x;  // as many as the batch has are all of them
  if (num_logit_rows < batch.num_rows) {
    last = View(act_.last, residual_dtype, num_logit_rows, c.hidden_size);
    ops_.GatherRows(x, logit_rows, last, stream);
  }
  ops_.Linear({.in = last,
               .transform = Norm(weights_.final_norm, num_logit_rows),
               .weight = *weights_.lm_head,
               .decodes = true,
               .out = logits},
              stream);
  return logits;
}

// The decode rows, then the prefill rows; all of them together where they are one family.
std::array<FoxModel::RowGroup, 2> FoxModel::GroupsOf(const BatchView& batch) const {
  const int64_t decodes =
      ops_.has_decode_family() || batch.all_decodes() ? int64_t{batch.num_decodes} : 0;
  return {{{0, decodes, true}, {decodes, batch.num_rows - decodes, false}}};
}

// Whether the norms of these rows are taken apart.
bool FoxModel::TakesNormsApart(const RowGroup& rows) const {
  return rows.decodes && ops_.has_decode_family();
}

// Whether products leave norms to one another.
bool FoxModel::FusesNorms(const RowGroup& rows) const {
  return rows.count > kSmallBatchRows && TakesNormsApart(rows);
}

void FoxModel::Project(int layer, const RowGroup& rows, Stream stream) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  LinearParams project = Normed(rows, w.attn_norm, *w.projection, layer > 0);
  project.bias = w.projection_bias.data();
  project.out = Projection(rows);
  ops_.Linear(project, stream);
}

// x += o(attention's output); then x += down(act(gate) * up), of the normed rows; then the next
// layer's projection.
void FoxModel::MixAndMlp(int layer, const RowGroup& rows, Stream stream) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const bool last = layer + 1 == weights_.config.num_layers;
  const MatrixView x = Residual(rows);
  LinearParams mix{
      .in = Attended(rows), .weight = *w.o, .accumulate = true, .decodes = rows.decodes, .out = x};
  const MatrixView y =
      View(act_.gate_up, act_.activation_dtype, rows.count, GateUpColumns(weights_.config, ops_));
  LinearParams gate_up = Normed(rows, w.mlp_norm, *w.gate_up, true);
  gate_up.out = y;
  LinearParams down{
      .in = y, .weight = *w.down, .accumulate = true, .decodes = rows.decodes, .out = x};
  if (ops_.has_decode_family()) {
    gate_up.gated = HiddenActivation();
  } else {
    down.transform = GatedAct(rows.count);
  }
  if (FusesNorms(rows)) {
    mix.leaves = Left(rows, w.mlp_norm);
    if (!last) {
      down.leaves = Left(rows, weights_.layers[static_cast<size_t>(layer) + 1].attn_norm);
    }
  }
  ops_.Linear(mix, stream);
  ops_.Linear(gate_up, stream);
  ops_.Linear(down, stream);
  // Now, for the next group's products use the same scratch.
  if (!last) Project(layer + 1, rows, stream);
}

// A product over the normed rows of x, which the product before has changed, or (not `behind`)
// something else.
LinearParams FoxModel::Normed(const RowGroup& rows, const Buffer& norm, const PackedWeight& weight,
                              bool behind) const {
  LinearParams params{.in = Residual(rows), .weight = weight, .decodes = rows.decodes, .out = {}};
  if (behind && FusesNorms(rows)) {
    params.takes = Left(rows, norm);
  } else {
    params.transform = Norm(norm, rows.count);
    params.transform.apart = behind && TakesNormsApart(rows);
  }
  return params;
}

NormedRows FoxModel::Left(const RowGroup& rows, const Buffer& norm) const {
  return {.rows = Scratch(rows.count, weights_.config.hidden_size),
          .sums = act_.norm_sums.as<float>(),
          .weight = norm.data(),
          .eps = weights_.config.norm_eps};
}

MatrixView FoxModel::Residual(const RowGroup& rows) const {
  return View(act_.x, weights_.residual_dtype, act_.max_rows, weights_.config.hidden_size)
      .Rows(rows.first, rows.count);
}

MatrixView FoxModel::Attended(const RowGroup& rows) const {
  return View(act_.o, act_.activation_dtype, act_.max_rows, weights_.config.hidden_size)
      .Rows(rows.first, rows.count);
}

MatrixView FoxModel::Projection(const RowGroup& rows) const {
  const ProjectionColumns& columns = weights_.columns;
  const MatrixView all{act_.projection.data(), act_.activation_dtype, act_.max_rows, columns.total,
                       columns.stride(act_.activation_dtype)};
  return all.Rows(rows.first, rows.count);
}

InputTransform FoxModel::Norm(const Buffer& weight, int64_t rows) const {
  return {.kind = InputTransform::Kind::kRmsNorm,
          .weight = weight.data(),
          .eps = weights_.config.norm_eps,
          .scratch = Scratch(rows, weights_.config.hidden_size)};
}

OutputTransform FoxModel::OutputTransformOf(const LayerWeights& w,
                                            const MatrixView& projection) const {
  const ModelConfig& c = weights_.config;
  const int64_t column = weights_.columns.ogate;
  return {.norm = w.output_norm.data(),
          .eps = c.norm_eps,
          .gate = column < 0 ? MatrixView{} : projection.Columns(column, c.hidden_size),
          .act = c.output_gate == OutputGate::kSilu ? Activation::kSilu : Activation::kSigmoid};
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
  const RowGroup all{0, batch.num_rows, false};
  const MatrixView projection = Projection(all);
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
                  .out = Attended(all),
                  .transform = OutputTransformOf(w, projection),
                  .acp = acp,
                  .bound = w.bound.view(),
                  .blocks_total = counters.blocks_total,
                  .blocks_pruned = counters.blocks_pruned},
                 kv, stream);
}

}  // namespace fox
