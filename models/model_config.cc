// ParseModelConfig: config.json of either layout to a ModelConfig. Each key is read once, with its
// default, its type and its bounds; the first violation wins. Read model_config.h first.
#include "models/model_config.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/error_text.h"
#include "models/json_reader.h"
#include "models/model_dir.h"

namespace fox {
namespace {

// With these bounds no product of extents below overflows int64: the largest tensor has
// 2^24 * 2^16 elements, and all layers together fewer than 2^50.
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHidden = 65536;
constexpr int64_t kMaxIntermediate = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 256;
constexpr size_t kMaxEosTokens = 64;
constexpr JsonLimits kConfigLimits{.max_bytes = 1 << 20, .max_depth = 64, .max_values = 1 << 18};

// The references round int(D * ratio * 2 / 3) up to a multiple of 256, in this order of operations.
int64_t IntermediateSize(KeyReader& keys, int64_t hidden_size) {
  const std::optional<int64_t> given =
      keys.OptionalInteger("intermediate_size", 1, kMaxIntermediate);
  const double ratio = keys.OptionalNumber("hidden_ratio").value_or(4.0);
  if (given) return *given;
  if (!(ratio > 0 && ratio <= 1024)) {
    keys.Invalid("hidden_ratio", "must be above 0 and at most 1024");
    return 1;
  }
  const auto product = static_cast<int64_t>(static_cast<double>(hidden_size) * ratio * 2 / 3);
  const int64_t size = (product + 255) / 256 * 256;
  if (size < 1 || size > kMaxIntermediate) {
    keys.Invalid("hidden_ratio", absl::StrCat("makes the intermediate size ", size));
  }
  return size;
}

void ReadTokenIds(KeyReader& keys, ModelConfig& config) {
  const int64_t last = config.vocab_size - 1;
  const auto id = [](int64_t value) { return static_cast<int32_t>(value); };
  const auto bos = keys.Has("bos_token_id") ? keys.OptionalInteger("bos_token_id", 0, last)
                                            : std::optional<int64_t>(1);
  if (bos && *bos <= last) config.bos_token_id = id(*bos);

  // Nothing is ever padded here, so a pad id outside the vocabulary (-1 is common) means none.
  const auto pad = keys.OptionalInteger("pad_token_id", std::numeric_limits<int32_t>::min(),
                                        std::numeric_limits<int32_t>::max());
  if (pad && *pad >= 0 && *pad <= last) config.pad_token_id = id(*pad);

  if (!keys.Has("eos_token_id")) {
    if (last >= 2) config.eos_token_ids = {2};
    return;
  }
  for (const int64_t eos : keys.Integers("eos_token_id", 0, last)) {
    config.eos_token_ids.push_back(id(eos));
  }
  if (config.eos_token_ids.size() > kMaxEosTokens) {
    keys.Invalid("eos_token_id", absl::StrCat("has more than ", kMaxEosTokens, " entries"));
  }
}

// What both layouts spell alike.
void ReadSizes(KeyReader& keys, ModelConfig& config) {
  config.vocab_size = keys.Integer("vocab_size", 32000, 1, kMaxVocab);
  config.hidden_size = keys.Integer("hidden_size", 2048, 1, kMaxHidden);
  config.num_layers = static_cast<int>(keys.Integer("num_hidden_layers", 24, 1, kMaxLayers));
  const int64_t heads = keys.Integer("num_heads", 32, 1, kMaxHeads);
  const int64_t kv_heads = keys.OptionalInteger("num_kv_heads", 1, kMaxHeads).value_or(heads);
  if (config.hidden_size % heads != 0) {
    keys.Invalid("hidden_size", "must be a multiple of num_heads");
  } else if (config.hidden_size / heads > kMaxHeadDim) {
    keys.Invalid("num_heads", absl::StrCat("makes a head larger than ", kMaxHeadDim));
  }
  if (heads % kv_heads != 0) keys.Invalid("num_heads", "must be a multiple of num_kv_heads");
  config.num_heads = static_cast<int>(heads);
  config.num_kv_heads = static_cast<int>(kv_heads);
  config.head_dim = static_cast<int>(config.hidden_size / heads);
  config.intermediate_size = IntermediateSize(keys, config.hidden_size);
  config.norm_eps = keys.Number("norm_eps", 1e-6);
  if (!(config.norm_eps > 0 && config.norm_eps <= 1)) {
    keys.Invalid("norm_eps", "must be above 0 and at most 1");
  }
  config.qk_norm = keys.Bool("qk_norm", false);
  config.qkv_bias = keys.Bool("qkv_bias", false);
  config.tie_word_embeddings = keys.Bool("tie_word_embeddings", false);
  config.max_position_embeddings =
      keys.OptionalInteger("max_position_embeddings", 1, std::numeric_limits<int32_t>::max());
  // Packed integer weights are a different model, whose tensors would not match.
  keys.RefuseUnlessNull("quantization_config");
  ReadTokenIds(keys, config);
}

Activation ReadHiddenAct(KeyReader& keys, bool sigmoid_exists) {
  const std::string name = keys.String("hidden_act", "swish");
  if (name == "swish" || name == "silu") return Activation::kSilu;
  if (name == "sigmoid" && sigmoid_exists) return Activation::kSigmoid;
  keys.Unsupported("hidden_act", Quoted(name) + " is not supported");
  return Activation::kSilu;
}

ForgetGate ReadForgetGate(KeyReader& keys) {
  const std::string name = keys.String("fgate_type", "full");
  if (name == "full") return ForgetGate::kFull;
  if (name == "bias_only") return ForgetGate::kBiasOnly;
  if (name == "fixed") return ForgetGate::kFixed;
  if (name == "none") return ForgetGate::kNone;
  keys.Unsupported("fgate_type", Quoted(name) + " is not supported");
  return ForgetGate::kNone;
}

// ogate_act is read only by a model that has an output gate.
std::optional<Activation> ReadOutputGate(KeyReader& keys) {
  if (!keys.Bool("use_output_gate", false)) return std::nullopt;
  const std::string name = keys.String("ogate_act", "sigmoid");
  if (name == "sigmoid") return Activation::kSigmoid;
  if (name == "silu") return Activation::kSilu;
  keys.Unsupported("ogate_act", Quoted(name) + " is not supported");
  return std::nullopt;
}

// num_kv_heads and qkv_bias go beyond the reference: the converter writes FLA models in this layout
// and needs them.
void ReadOfficial(KeyReader& keys, ModelConfig& config) {
  config.layout = CheckpointLayout::kOfficial;
  config.hidden_act = ReadHiddenAct(keys, /*sigmoid_exists=*/true);
  config.forget_gate = ReadForgetGate(keys);
  config.output_gate = ReadOutputGate(keys);
  config.output_norm = keys.Bool("use_output_norm", false);
  if (config.output_norm && config.output_gate == Activation::kSilu) {
    keys.Unsupported("ogate_act", "\"silu\" does not exist together with use_output_norm");
  }
  config.qk_norm_per_head = !keys.Bool("qk_norm_share_param_across_head", false);
  config.k_shift = keys.Bool("use_k_shift", false);
  config.v_shift = keys.Bool("use_v_shift", false);
  if (config.qkv_bias && (config.k_shift || config.v_shift)) {
    keys.Unsupported("qkv_bias", "is not supported together with use_k_shift or use_v_shift");
  }
  config.use_rope = keys.Bool("use_rope", false);
  if (config.use_rope) {
    config.rope_base = keys.Number("rope_base", 500000.0);
    if (!(config.rope_base > 0)) keys.Invalid("rope_base", "must be above 0");
    if (config.head_dim % 2 != 0) keys.Invalid("num_heads", "makes an odd head size under RoPE");
  }
  config.log_pruning_tolerance = keys.OptionalNumber("log_pruning_tolerance");
  if (config.log_pruning_tolerance && !(*config.log_pruning_tolerance < 0)) {
    keys.Invalid("log_pruning_tolerance", "must be negative or null");
  }
}

void ReadFla(KeyReader& keys, ModelConfig& config) {
  config.layout = CheckpointLayout::kFla;
  config.hidden_act = ReadHiddenAct(keys, /*sigmoid_exists=*/false);
  if (keys.Bool("use_output_gate", false)) config.output_gate = Activation::kSigmoid;
  // The reference trims its cache to the window but never masks by it: the result would depend on
  // how a prompt was cut.
  keys.RefuseUnlessNull("window_size");
  keys.RefuseUnlessNull("attnres_block_size");
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json) {
  const auto parsed = ReadJsonObject(json, kConfigLimits, "config.json");
  if (!parsed.ok()) return parsed.status();
  KeyReader keys(*parsed, "config.json");
  if (!keys.Has("model_type")) keys.Invalid("model_type", "is missing");
  const std::string model_type = keys.String("model_type", "");
  if (!keys.status().ok()) return keys.status();
  const bool official = model_type == "forgetting_transformer-project_fox";
  if (!official && model_type != "forgetting_transformer") {
    return absl::UnimplementedError(absl::StrCat("config.json: model_type ", Quoted(model_type),
                                                 " is not a Forgetting Transformer"));
  }
  ModelConfig config;
  ReadSizes(keys, config);
  if (!keys.status().ok()) return keys.status();
  if (official) {
    ReadOfficial(keys, config);
  } else {
    ReadFla(keys, config);
  }
  if (!keys.status().ok()) return keys.status();
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const ModelDir& dir) {
  absl::StatusOr<std::string> json = dir.ReadText("config.json", kConfigLimits.max_bytes);
  if (!json.ok()) return json.status();
  return ParseModelConfig(*json);
}

}  // namespace fox
