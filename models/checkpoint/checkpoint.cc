// Checkpoint::Open takes every tensor once, by its name in the checkpoint's layout and its exact
// shape, and refuses a checkpoint with unused tensors. A rotary inv_freq buffer in a FoX checkpoint
// is such a tensor: both references register it as non-persistent, so the checkpoint was made by
// code whose RoPE is unknown. Old versions of transformers saved it, and newer ones ignore it: for
// that layout config.json decides.
#include "models/checkpoint/checkpoint.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/checkpoint/model_dir.h"

namespace fox {
namespace {

using Shape = std::vector<int64_t>;

constexpr double kMaxFloat = std::numeric_limits<float>::max();
// Norm weights and caps within these limits keep products and squares of scaled values within
// float32's normal range, with its full relative precision. The bounds of pruning rely on that
// (kernels/docs/acp.md 5).
constexpr double kMinScale = 0x1p-60, kMaxScale = 0x1p60;

std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Hands out the stored tensors by name and checks their shapes. The first error is kept, and a
// tensor with an error is returned empty.
class TensorTaker {
 public:
  explicit TensorTaker(const SafetensorsEntries& tensors) : tensors_(tensors) {}

  bool Has(const std::string& name) const { return tensors_.contains(name); }

  HostTensor Take(const std::string& name, const Shape& shape) {
    const auto fail = [&](const auto&... problem) {
      Fail(absl::StrCat("tensor ", Quoted(name), problem...));
      return HostTensor();
    };
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return fail(" is missing");
    const SafetensorsEntry& entry = it->second;
    FOX_CHECK(entry.dtype.has_value());
    if (entry.shape != shape) {
      return fail(" has shape ", ShapeText(entry.shape), ", the configuration needs ",
                  ShapeText(shape));
    }
    taken_.insert(name);
    HostTensor tensor{.data = entry.data.data(), .dtype = *entry.dtype, .shape = entry.shape};
    FOX_CHECK(entry.data.size() == static_cast<size_t>(tensor.size()) * SizeOf(tensor.dtype));
    return tensor;
  }

  // A vector whose values must lie between `low` and `high`; NaN does not.
  HostTensor TakeWithin(const std::string& name, int64_t count, double low, double high) {
    return TakeChecked(name, count, absl::StrCat("not between ", low, " and ", high),
                       [=](double value) { return value >= low && value <= high; });
  }

  // The weights of a norm. If pruning's bounds depend on them (`bounds`), each must be 0 or of a
  // magnitude between kMinScale and kMaxScale. Values that are not finite pass: Open decides.
  HostTensor TakeNorm(const std::string& name, int64_t count, bool bounds) {
    if (!bounds) return Take(name, {count});
    return TakeChecked(name, count,
                       "which pruning's bounds cannot take: neither 0 nor of a magnitude between "
                       "2^-60 and 2^60",
                       [](double value) {
                         const double size = std::fabs(value);
                         return size == 0 || !std::isfinite(size) ||
                                (size >= kMinScale && size <= kMaxScale);
                       });
  }

  // The first error, or one for unused tensors.
  absl::Status Finish() {
    FOX_CHECK(taken_.size() <= tensors_.size());
    if (status_.ok() && taken_.size() < tensors_.size()) {
      for (const auto& [name, entry] : tensors_) {
        if (taken_.contains(name)) continue;
        Fail(absl::StrCat("tensor ", Quoted(name), " is not part of this model (",
                          tensors_.size() - taken_.size(), " left over)"));
        break;
      }
    }
    return status_;
  }

 private:
  void Fail(const std::string& problem) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(problem);
  }

  // A vector whose values must pass `check`, in double precision, because float32 would round the
  // smallest ones to 0.
  template <typename Check>
  HostTensor TakeChecked(const std::string& name, int64_t count, const std::string& problem,
                         const Check& check) {
    HostTensor tensor = Take(name, {count});
    std::vector<double> values(tensor.empty() ? 0 : static_cast<size_t>(count));
    ReadElements(tensor, 0, static_cast<int64_t>(values.size()), values.data());
    for (const double value : values) {
      if (check(value)) continue;
      Fail(absl::StrCat("tensor ", Quoted(name), " holds ", value, ", ", problem));
    }
    return tensor;
  }

  const SafetensorsEntries& tensors_;
  std::set<std::string> taken_;
  absl::Status status_;
};

// The names of tensors that differ between the layouts.
struct TensorNames {
  const char *embeddings = "", *attn_norm = "", *attn = "", *mlp_norm = "";
  const char *forget_gate = "", *output_gate = "";
};

TensorNames NamesOf(CheckpointLayout layout) {
  switch (layout) {
    case CheckpointLayout::kOfficial:
      return {"embeddings", "attn_norm", "attn", "mlp_norm", "fgate_proj", "ogate_proj"};
    case CheckpointLayout::kFla:
      return {"embeddings", "attn_norm", "attn", "mlp_norm", "f_proj", "g_proj"};
    case CheckpointLayout::kTransformers:
      break;
  }
  return {"embed_tokens", "input_layernorm", "self_attn", "post_attention_layernorm", "fgate_proj"};
}

// k_proj or v_proj: a plain linear map, or one inside a token shift.
void TakeKeyOrValue(TensorTaker& taker, const ModelConfig& config, const std::string& name,
                    bool shifted, HostTensor& proj, HostTensor& shift_proj, HostTensor& bias) {
  const int64_t d = config.hidden_size;
  proj = taker.Take(name + (shifted ? ".linear.weight" : ".weight"), {config.kv_size(), d});
  if (shifted) shift_proj = taker.Take(name + ".shift_proj.weight", {config.num_kv_heads, d});
  if (config.qkv_bias) bias = taker.Take(name + ".bias", {config.kv_size()});
}

void TakeGates(TensorTaker& taker, const ModelConfig& config, const std::string& attn,
               LayerTensors& layer) {
  const int64_t d = config.hidden_size;
  const int64_t heads = config.num_heads;
  const TensorNames names = NamesOf(config.layout);
  const std::string forget = attn + names.forget_gate;
  switch (config.forget_gate) {
    case ForgetGate::kFull:
      layer.fgate_proj = taker.Take(forget + ".weight", {config.num_gates(), d});
      layer.fgate_bias = taker.Take(forget + ".bias", {config.num_gates()});
      break;
    case ForgetGate::kBiasOnly:  // a parameter in the reference, and
    case ForgetGate::kFixed:     // a buffer: both are saved
      layer.fgate_bias = taker.Take(attn + "fgate_bias", {heads});
      break;
    case ForgetGate::kNone:
      break;
  }
  if (config.output_gate) {
    layer.ogate_proj = taker.Take(attn + names.output_gate + ".weight", {config.q_size(), d});
  }
}

void TakeMlp(TensorTaker& taker, const ModelConfig& config, const std::string& mlp,
             LayerTensors& layer) {
  const int64_t d = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  if (config.layout == CheckpointLayout::kOfficial) {
    layer.gate_up = {taker.Take(mlp + "gate_proj.weight", {2 * inner, d})};
  } else {
    layer.gate_up = {taker.Take(mlp + "gate_proj.weight", {inner, d}),
                     taker.Take(mlp + "up_proj.weight", {inner, d})};
  }
  layer.down_proj = taker.Take(mlp + "down_proj.weight", {d, inner});
}

LayerTensors TakeLayer(TensorTaker& taker, const ModelConfig& config, int index) {
  const TensorNames names = NamesOf(config.layout);
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  const std::string attn = absl::StrCat(prefix, names.attn, ".");
  const int64_t d = config.hidden_size, q = config.q_size();
  LayerTensors layer;
  const bool prunes = config.forget_gate != ForgetGate::kNone;
  layer.attn_norm = taker.TakeNorm(absl::StrCat(prefix, names.attn_norm, ".weight"), d, prunes);
  layer.q_proj = taker.Take(attn + "q_proj.weight", {q, d});
  if (config.qkv_bias) layer.q_bias = taker.Take(attn + "q_proj.bias", {q});
  TakeKeyOrValue(taker, config, attn + "k_proj", config.k_shift, layer.k_proj, layer.k_shift_proj,
                 layer.k_bias);
  TakeKeyOrValue(taker, config, attn + "v_proj", config.v_shift, layer.v_proj, layer.v_shift_proj,
                 layer.v_bias);
  TakeGates(taker, config, attn, layer);
  if (config.output_norm) layer.output_norm = taker.Take(attn + "output_norm.weight", {q});
  if (config.qk_norm) {
    const bool per_head = config.qk_norm_per_head;
    const int64_t k = config.kv_size();
    layer.q_norm = taker.TakeNorm(attn + "q_norm.weight", per_head ? q : config.head_dim, prunes);
    layer.k_norm = taker.TakeNorm(attn + "k_norm.weight", per_head ? k : config.head_dim, prunes);
  }
  if (config.qk_norm_cap) {
    layer.q_cap = taker.TakeWithin(attn + "q_cap", config.num_heads, kMinScale, kMaxScale);
    layer.k_cap = taker.TakeWithin(attn + "k_cap", config.num_kv_heads, kMinScale, kMaxScale);
  }
  if (config.attention_sink) {
    layer.sinks = taker.TakeWithin(attn + "sinks", config.num_heads, -kMaxFloat, kMaxFloat);
  }
  layer.o_proj = taker.Take(attn + "o_proj.weight", {d, q});
  layer.mlp_norm = taker.Take(absl::StrCat(prefix, names.mlp_norm, ".weight"), {d});
  TakeMlp(taker, config, prefix + "mlp.", layer);
  return layer;
}

bool HaveSameBits(const HostTensor& a, const HostTensor& b) {
  FOX_CHECK(a.shape == b.shape && !a.empty() && !b.empty());
  const size_t bytes = static_cast<size_t>(a.size()) * SizeOf(a.dtype);
  return a.dtype == b.dtype && std::memcmp(a.data, b.data, bytes) == 0;
}

// The tensors under the names of the class with an output layer. Files of the class without one, as
// LlamaModel, lack the prefix; transformers loads them, too.
SafetensorsEntries WithPrefix(const SafetensorsEntries& tensors) {
  SafetensorsEntries named;
  for (const auto& [name, entry] : tensors) {
    if (name.starts_with("model.")) return tensors;
    named[name.starts_with("lm_head.") ? name : "model." + name] = entry;
  }
  return named;
}

// CheckTypes refuses quantized weights, each format of which has tensors of integers or of 8 bits.
absl::Status CheckTypes(const SafetensorsEntries& tensors) {
  for (const auto& [name, entry] : tensors) {
    if (entry.dtype) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " has dtype ",
                                                   entry.dtype_name, ": quantized weights are not ",
                                                   "supported: ", kInsteadOfQuantized));
  }
  return absl::OkStatus();
}

// REQUIRES: CheckTypes(tensors) is ok.
absl::Status CheckFinite(const SafetensorsEntries& tensors) {
  for (const auto& [name, entry] : tensors) {
    FOX_CHECK(entry.dtype.has_value());
    const int64_t count =
        CountNonFinite({.data = entry.data.data(), .dtype = *entry.dtype, .shape = entry.shape});
    if (count == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " holds ", count,
                                                   " values that are NaN or infinite"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& dir,
                                            const CheckpointOptions& options) {
  absl::StatusOr<ModelDir> model_dir = ModelDir::Open(dir);
  if (!model_dir.ok()) return model_dir.status();
  absl::StatusOr<ModelConfig> config = ReadModelConfig(*model_dir);
  if (!config.ok()) return config.status();
  absl::StatusOr<TensorFiles> files = TensorFiles::Open(*model_dir);
  if (!files.ok()) return files.status();

  Checkpoint checkpoint(*std::move(files));
  checkpoint.config_ = *std::move(config);
  SafetensorsEntries tensors = WithPrefix(checkpoint.files_.tensors());
  if (checkpoint.config_.layout == CheckpointLayout::kTransformers) {
    std::erase_if(tensors,
                  [](const auto& tensor) { return tensor.first.ends_with("rotary_emb.inv_freq"); });
  }
  absl::Status status = CheckTypes(tensors);
  if (status.ok()) status = checkpoint.TakeTensors(tensors);
  if (status.ok() && !options.allow_nonfinite) status = CheckFinite(tensors);
  // The scan is void if the file has changed meanwhile.
  if (const absl::Status unchanged = checkpoint.CheckUnchanged(); !unchanged.ok()) {
    status = unchanged;
  }
  if (!status.ok()) return status;
  return checkpoint;
}

absl::Status Checkpoint::TakeTensors(const SafetensorsEntries& tensors) {
  const int64_t d = config_.hidden_size;
  TensorTaker taker(tensors);
  // A tied matrix is stored under either name or under both. Two that differ are two matrices, as
  // transformers 5 loads them.
  const std::string head = "lm_head.weight";
  std::string embeddings = absl::StrCat("model.", NamesOf(config_.layout).embeddings, ".weight");
  bool has_head = !config_.tie_word_embeddings || taker.Has(head);
  if (config_.tie_word_embeddings && has_head && !taker.Has(embeddings)) {
    embeddings = head;
    has_head = false;
  }
  embeddings_ = taker.Take(embeddings, {config_.vocab_size, d});
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    layers_.push_back(TakeLayer(taker, config_, layer));
  }
  final_norm_ = taker.Take("model.norm.weight", {d});
  if (has_head) lm_head_ = taker.Take(head, {config_.vocab_size, d});
  if (absl::Status status = taker.Finish(); !status.ok()) return status;
  FOX_CHECK(layers_.size() == static_cast<size_t>(config_.num_layers));
  FOX_CHECK(has_head != lm_head_.empty() && !embeddings_.empty() && !final_norm_.empty());
  if (!config_.tie_word_embeddings) return absl::OkStatus();
  config_.tie_word_embeddings = !has_head || HaveSameBits(lm_head_, embeddings_);
  if (config_.tie_word_embeddings) lm_head_ = embeddings_;
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckUnchanged() const { return files_.CheckUnchanged(); }

}  // namespace fox
