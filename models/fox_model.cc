// The forward pass, top to bottom. Read kernels/ops.h for what each operation does.
#include "models/fox_model.h"

#include "kernels/core/check.h"

namespace fox {
namespace {

MatrixView View(const Buffer& buffer, DType dtype, int64_t rows, int64_t cols) {
  return {buffer.data(), dtype, rows, cols, cols};
}

}  // namespace

Activations::Activations(const FoxWeights& weights, Ops& ops, int64_t rows, int64_t logit_rows)
    : max_rows(rows), max_logit_rows(logit_rows) {
  const ModelConfig& c = weights.config;
  const auto allocate = [&](int64_t n, int64_t cols) {
    return ops.Allocate(static_cast<size_t>(n * cols) * SizeOf(weights.wide));
  };
  x = allocate(rows, c.hidden_size);
  h = allocate(rows, c.hidden_size);
  projection = allocate(rows, weights.columns.total);
  o = allocate(rows, c.hidden_size);
  gate_up = allocate(rows, 2 * c.intermediate_size);
  act = allocate(rows, c.intermediate_size);
  last = allocate(logit_rows, c.hidden_size);
  logits = allocate(logit_rows, c.vocab_size);
}

MatrixView FoxModel::Forward(const BatchView& batch, const int64_t* logit_rows,
                             int64_t num_logit_rows, AcpMode acp, const PagedKv& kv,
                             const ForwardCounters& counters, Stream stream) {
  const ModelConfig& c = weights_.config;
  const DType wide = weights_.wide;
  FOX_CHECK(batch.num_rows <= act_.max_rows && num_logit_rows <= act_.max_logit_rows);
  const MatrixView x = View(act_.x, wide, batch.num_rows, c.hidden_size);
  const MatrixView h = View(act_.h, wide, batch.num_rows, c.hidden_size);
  const MatrixView projection = View(act_.projection, wide, batch.num_rows, weights_.columns.total);
  const MatrixView o = View(act_.o, wide, batch.num_rows, c.hidden_size);
  const MatrixView gate_up = View(act_.gate_up, wide, batch.num_rows, 2 * c.intermediate_size);
  const MatrixView act = View(act_.act, wide, batch.num_rows, c.intermediate_size);
  const MatrixView table{weights_.embeddings.data(), weights_.embeddings_dtype, c.vocab_size,
                         c.hidden_size, c.hidden_size};

  ops_.Embed(batch, table, x, stream);
  for (int n = 0; n < c.num_layers; ++n) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(n)];
    ops_.RmsNorm(x, w.attn_norm.data(), c.norm_eps, h, stream);
    ops_.Linear(h, *w.projection, w.projection_bias.data(), false, projection, stream);
    Attend(n, batch, acp, kv, counters, stream);
    ops_.Linear(o, *w.o, nullptr, true, x, stream);

    ops_.RmsNorm(x, w.mlp_norm.data(), c.norm_eps, h, stream);
    ops_.Linear(h, *w.gate_up, nullptr, false, gate_up, stream);
    ops_.GatedAct(gate_up, c.hidden_act == HiddenAct::kSilu, act, stream);
    ops_.Linear(act, *w.down, nullptr, true, x, stream);
  }

  const MatrixView last = View(act_.last, wide, num_logit_rows, c.hidden_size);
  const MatrixView logits = View(act_.logits, wide, num_logit_rows, c.vocab_size);
  ops_.GatherRows(x, logit_rows, last, stream);
  ops_.RmsNorm(last, weights_.final_norm.data(), c.norm_eps, last, stream);
  ops_.Linear(last, *weights_.lm_head, nullptr, false, logits, stream);
  return logits;
}

// Projections to attention output: append, attend, evict, gate.
void FoxModel::Attend(int layer, const BatchView& batch, AcpMode acp, const PagedKv& kv,
                      const ForwardCounters& counters, Stream stream) {
  const ModelConfig& c = weights_.config;
  const ProjectionColumns& columns = weights_.columns;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const MatrixView projection = View(act_.projection, weights_.wide, batch.num_rows, columns.total);
  const MatrixView o = View(act_.o, weights_.wide, batch.num_rows, c.hidden_size);

  AppendParams append;
  append.layer = layer;
  append.projection = projection;
  append.q_column = columns.q;
  append.k_column = columns.k;
  append.v_column = columns.v;
  append.k_shift_column = columns.k_shift;
  append.v_shift_column = columns.v_shift;
  append.fgate_column = columns.fgate;
  append.fgate_bias = w.fgate_bias.data();
  append.has_gate = c.forget_gate != ForgetGate::kNone;
  append.min_log_gate = w.bound.min_log_gate();
  append.q_norm = w.q_norm.data();
  append.k_norm = w.k_norm.data();
  append.qk_norm_eps = kQkNormEps;
  append.rope_frequency = weights_.rope_frequency.as<double>();
  append.bound = w.bound.view();
  append.acp = acp;
  ops_.Append(batch, append, kv, stream);

  AttentionParams attention;
  attention.layer = layer;
  attention.q = projection.Columns(columns.q, c.hidden_size);
  attention.out = o;
  attention.acp = acp;
  attention.bound = w.bound.view();
  attention.blocks_total = counters.blocks_total;
  attention.blocks_skipped = counters.blocks_skipped;
  ops_.Attention(batch, attention, kv, stream);

  ops_.Evict(batch, {layer, acp, w.bound.view(), counters.pages_evicted}, kv, stream);

  const MatrixView gate =
      columns.ogate < 0 ? MatrixView{} : projection.Columns(columns.ogate, c.hidden_size);
  ops_.OutputGate(o, c.head_dim, w.output_norm.data(), c.norm_eps, gate,
                  c.output_gate == OutputGate::kSilu, stream);
}

}  // namespace fox
