// The forward pass, top to bottom. Read kernels/interface/ops.h for what each operation does.
#include "models/fox_model.h"

#include "kernels/core/check.h"

namespace fox {
namespace {

MatrixView View(const Buffer& buffer, DType dtype, int64_t rows, int64_t cols) {
  return {buffer.data(), dtype, rows, cols, cols};
}

}  // namespace

Activations::Activations(const FoxWeights& weights, Ops& ops, int64_t rows, int64_t logit_rows)
    : max_rows(rows),
      max_logit_rows(logit_rows),
      dtype(ops.ActivationDType(weights.residual_dtype)) {
  FOX_CHECK(rows >= 1 && logit_rows >= 0);
  const ModelConfig& c = weights.config;
  const auto allocate = [&](int64_t n, int64_t cols, DType type) {
    return ops.Allocate(static_cast<size_t>(n * cols) * SizeOf(type));
  };
  x = allocate(rows, c.hidden_size, weights.residual_dtype);
  projection = allocate(rows, weights.columns.stride(dtype), dtype);
  o = allocate(rows, c.q_size(), dtype);
  h = allocate(rows, c.intermediate_size, dtype);
  last = allocate(logit_rows, c.hidden_size, weights.residual_dtype);
  logits = allocate(logit_rows, c.vocab_size, weights.residual_dtype);
}

size_t Activations::Bytes(const ModelConfig& c, DType residual_dtype, const Ops& ops, int64_t rows,
                          int64_t logit_rows) {
  const DType dtype = ops.ActivationDType(residual_dtype);
  const int64_t residuals = rows * c.hidden_size + logit_rows * (c.hidden_size + c.vocab_size);
  const int64_t others = rows * (ColumnsOf(c).stride(dtype) + c.q_size() + c.intermediate_size);
  return static_cast<size_t>(residuals) * SizeOf(residual_dtype) +
         static_cast<size_t>(others) * SizeOf(dtype);
}

void FoxModel::Forward(const BatchView& batch, AcpMode acp, const PagedKv& kv,
                       const ForwardCounters& counters, Stream stream) {
  const ModelConfig& c = weights_.config;
  const DType residual_dtype = weights_.residual_dtype;
  const int64_t rows = batch.num_rows, decodes = batch.num_decodes;
  FOX_CHECK(decodes <= rows && rows <= act_.max_rows);
  const MatrixView table{weights_.embeddings.data(), weights_.embeddings_dtype, c.vocab_size,
                         c.hidden_size, c.hidden_size};
  const MatrixView x = View(act_.x, residual_dtype, rows, c.hidden_size);
  const MatrixView projection{act_.projection.data(), act_.dtype, rows, weights_.columns.total,
                              weights_.columns.stride(act_.dtype)};
  const MatrixView o = View(act_.o, act_.dtype, rows, c.q_size());
  const MatrixView h = View(act_.h, act_.dtype, rows, c.intermediate_size);

  ops_.BeginStep(batch, kv, stream);
  table.empty() ? ops_.Embed(batch, weights_.embedding_blocks(), x, stream)
                : ops_.Embed(batch, table, x, stream);
  for (int n = 0; n < c.num_layers; ++n) {
    const LayerWeights& w = Layer(n);
    ops_.Linear({.in = x,
                 .norm = Norm(w.attn_norm),
                 .weight = *w.projection,
                 .bias = w.projection_bias.data(),
                 .decode_rows = decodes,
                 .out = projection},
                stream);
    ops_.Append(batch, AppendOf(n, projection, acp), kv, stream);
    ops_.Attention(batch, AttentionOf(n, projection, o, acp, counters), kv, stream);
    ops_.Linear({.in = o,
                 .weight = *w.o,
                 .accumulate = true,
                 .next_norm = Norm(w.mlp_norm),
                 .decode_rows = decodes,
                 .out = x},
                stream);
    ops_.Linear({.in = x,
                 .norm = Norm(w.mlp_norm),
                 .weight = *w.gate_up,
                 .gate = c.hidden_act,
                 .decode_rows = decodes,
                 .out = h},
                stream);
    ops_.Linear(
        {.in = h,
         .weight = *w.down,
         .accumulate = true,
         .next_norm = Norm(n + 1 < c.num_layers ? Layer(n + 1).attn_norm : weights_.final_norm),
         .decode_rows = decodes,
         .out = x},
        stream);
  }
  ops_.Evict(batch,
             {.acp = acp,
              .self_logit_bound = weights_.self_logit_bound.as<double>(),
              .max_logit_bound = weights_.max_logit_bound.as<double>(),
              .pages_evicted = counters.pages_evicted,
              .max_log_evicted_mass = counters.max_log_evicted_mass,
              .max_norm_product = weights_.max_norm_product.as<double>(),
              .log_max_value = weights_.log_max_value.as<double>(),
              .lost_mass = counters.lost_mass,
              .bounds = weights_.bounds.as<QueryBound>(),
              .diagonal = weights_.diagonal_bounds},
             kv, stream);
}

MatrixView FoxModel::Logits(const BatchView& batch, const int64_t* rows, int64_t count,
                            int64_t decode_rows, Stream stream) {
  const ModelConfig& c = weights_.config;
  FOX_CHECK(count <= act_.max_logit_rows && decode_rows <= batch.num_rows);
  const MatrixView x = View(act_.x, weights_.residual_dtype, batch.num_rows, c.hidden_size);
  const bool all = decode_rows == batch.num_rows;  // `rows` ascend
  const MatrixView last = all ? x : View(act_.last, x.dtype, count, c.hidden_size);
  if (!all) ops_.GatherRows(x, rows, last, stream);
  const MatrixView logits = View(act_.logits, weights_.residual_dtype, count, c.vocab_size);
  ops_.Linear({.in = last,
               .norm = Norm(weights_.final_norm),
               .weight = *weights_.lm_head,
               .decode_rows = decode_rows,
               .out = logits},
              stream);
  return logits;
}

AppendParams FoxModel::AppendOf(int layer, const MatrixView& projection, AcpMode acp) const {
  const ProjectionColumns& columns = weights_.columns;
  const LayerWeights& w = Layer(layer);
  return {.layer = layer,
          .projection = projection,
          .q_column = columns.q,
          .k_column = columns.k,
          .v_column = columns.v,
          .k_shift_column = columns.k_shift,
          .v_shift_column = columns.v_shift,
          .fgate_column = columns.fgate,
          .fgate_bias = w.fgate_bias.data(),
          .has_gate = weights_.config.forget_gate != ForgetGate::kNone,
          .min_log_gate = w.bound.min_log_gate(),
          .q_norm = w.q_norm.data(),
          .k_norm = w.k_norm.data(),
          .qk_norm_eps = weights_.config.qk_norm_eps,
          .q_cap = w.q_cap.as<float>(),
          .k_cap = w.k_cap.as<float>(),
          .rope_frequency = weights_.rope_frequency.as<double>(),
          .attention_factor = weights_.config.rope_scaling.attention_factor,
          .bound = w.bound.view(),
          .acp = acp};
}

AttentionParams FoxModel::AttentionOf(int layer, const MatrixView& projection,
                                      const MatrixView& out, AcpMode acp,
                                      const ForwardCounters& counters) const {
  const ModelConfig& c = weights_.config;
  const ProjectionColumns& columns = weights_.columns;
  const LayerWeights& w = Layer(layer);
  AttentionParams params{.layer = layer,
                         .q = projection.Columns(columns.q, c.q_size()),
                         .out = out,
                         .transform = {.norm = w.output_norm.data(), .eps = c.norm_eps},
                         .sink = w.sinks.as<float>(),
                         .acp = acp,
                         .bound = w.bound.view(),
                         .blocks_total = counters.blocks_total,
                         .blocks_pruned = counters.blocks_pruned};
  if (c.output_gate) {
    params.transform.gate = projection.Columns(columns.ogate, c.q_size());
    params.transform.act = *c.output_gate;
  }
  return params;
}

}  // namespace fox
