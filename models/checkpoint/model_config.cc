// ParseModelConfig: config.json of any layout to a ModelConfig. Each key is read once, with its
// default, its type and its bounds; the first violation wins. Read model_config.h first.
#include "models/checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numbers>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/checkpoint/json_reader.h"
#include "models/checkpoint/model_dir.h"

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
constexpr double kMinNormEps = 1e-30;  // a normal number of float32
static_assert(kMaxVocab * kMaxHidden <= std::numeric_limits<int64_t>::max() / 8);
static_assert(kMaxIntermediate * kMaxHidden * kMaxLayers <= int64_t{1} << 50);
static_assert(kMaxHeads * kMaxHeadDim <= std::numeric_limits<int>::max());
static_assert(kMaxVocab <= std::numeric_limits<int32_t>::max(), "ids have 32 bits");
constexpr JsonLimits kConfigLimits{
    .max_bytes = 1 << 20, .max_depth = 64, .max_values = 1 << 18, .python_numbers = true};

// A model_type of config.json, with the properties that it implies.
struct ModelType {
  const char* name = nullptr;
  CheckpointLayout layout = CheckpointLayout::kOfficial;
  const char* architecture = nullptr;  // the only accepted one; null: not checked
  bool qkv_bias = false;
  bool qk_norm = false;
  bool has_token_ids = true;  // bos 1 and eos 2 unless config.json says otherwise
  // Defaults of the class. 0: as many kv heads as query heads; hidden_size / heads.
  int64_t kv_heads = 0, head_dim = 0;
};
constexpr auto kTransformers = CheckpointLayout::kTransformers;
constexpr ModelType kModelTypes[] = {
    {"forgetting_transformer-project_fox", CheckpointLayout::kOfficial},
    {"forgetting_transformer", CheckpointLayout::kFla},
    {"llama", kTransformers, "LlamaForCausalLM"},
    {"mistral", kTransformers, "MistralForCausalLM", false, false, true, 8},
    {"qwen2", kTransformers, "Qwen2ForCausalLM", true, false, false, 32},
    {"qwen3", kTransformers, "Qwen3ForCausalLM", false, true, false, 32, 128},
};

// Keys that FoX and transformers spell differently.
struct SizeKeys {
  const char *heads, *kv_heads, *norm_eps;
};
constexpr SizeKeys kFoxKeys{"num_heads", "num_kv_heads", "norm_eps"};
constexpr SizeKeys kTransformersKeys{"num_attention_heads", "num_key_value_heads", "rms_norm_eps"};

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

// An id outside of the vocabulary means no token: configurations write -1 or vocab_size for that.
void ReadTokenIds(KeyReader& keys, bool has_defaults, ModelConfig& config) {
  constexpr int64_t kLow = std::numeric_limits<int32_t>::min();
  constexpr int64_t kHigh = std::numeric_limits<int32_t>::max();
  const auto exists = [&](int64_t id) { return id >= 0 && id < config.vocab_size; };
  const auto read = [&](const char* key, std::optional<int64_t> otherwise) {
    const auto id = keys.Has(key) ? keys.OptionalInteger(key, kLow, kHigh) : otherwise;
    return id && exists(*id) ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
  };
  config.bos_token_id = read("bos_token_id", has_defaults ? std::optional(1) : std::nullopt);
  config.pad_token_id = read("pad_token_id", std::nullopt);

  if (!keys.Has("eos_token_id")) {
    if (exists(2) && has_defaults) config.eos_token_ids = {2};
    return;
  }
  for (const int64_t eos : keys.Integers("eos_token_id", kLow, kHigh)) {
    if (exists(eos)) config.eos_token_ids.push_back(static_cast<int32_t>(eos));
  }
  if (config.eos_token_ids.size() > kMaxEosTokens) {
    keys.Invalid("eos_token_id", absl::StrCat("has more than ", kMaxEosTokens, " entries"));
  }
}

// A quantized checkpoint has tensors of other names, types and shapes.
void RefuseQuantized(KeyReader& keys) {
  for (const char* key : {"quantization_config", "quantization"}) {  // the second is MLX's
    const nlohmann::json* found = keys.Find(key);
    if (found == nullptr) continue;
    const bool named = found->is_object() && found->contains("quant_method") &&
                       (*found)["quant_method"].is_string();
    const std::string method =
        named ? absl::StrCat(" (", Printable((*found)["quant_method"].get<std::string>()), ")")
              : "";
    keys.Unsupported(key, absl::StrCat("is not supported", method, ": ", kInsteadOfQuantized));
  }
}

void ReadSizes(KeyReader& keys, const ModelType& type, ModelConfig& config) {
  const bool fox = type.layout != kTransformers;
  const SizeKeys& names = fox ? kFoxKeys : kTransformersKeys;
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", names.heads}) {
    // The classes of transformers differ in their defaults.
    if (!fox && keys.Find(key) == nullptr) keys.Invalid(key, "is missing");
  }
  config.vocab_size = keys.Integer("vocab_size", 32000, 1, kMaxVocab);
  config.hidden_size = keys.Integer("hidden_size", 2048, 1, kMaxHidden);
  config.num_layers = static_cast<int>(keys.Integer("num_hidden_layers", 24, 1, kMaxLayers));
  const int64_t heads = keys.Integer(names.heads, 32, 1, kMaxHeads);
  const int64_t kv_heads = type.kv_heads != 0 && !keys.Has(names.kv_heads)
                               ? type.kv_heads
                               : keys.OptionalInteger(names.kv_heads, 1, kMaxHeads).value_or(heads);
  std::optional<int64_t> head_dim;
  if (type.head_dim != 0) {
    head_dim = keys.Integer("head_dim", type.head_dim, 1, kMaxHeadDim);
  } else if (!fox) {
    head_dim = keys.OptionalInteger("head_dim", 1, kMaxHeadDim);
  }
  if (!head_dim && config.hidden_size % heads != 0) {
    keys.Invalid("hidden_size", absl::StrCat("must be a multiple of ", names.heads));
  } else if (!head_dim && config.hidden_size / heads > kMaxHeadDim) {
    keys.Invalid(names.heads, absl::StrCat("makes a head larger than ", kMaxHeadDim));
  }
  if (heads % kv_heads != 0) {
    keys.Invalid(names.heads, absl::StrCat("must be a multiple of ", names.kv_heads));
  }
  config.num_heads = static_cast<int>(heads);
  config.num_kv_heads = static_cast<int>(kv_heads);
  config.head_dim = static_cast<int>(head_dim.value_or(config.hidden_size / heads));
  config.intermediate_size = IntermediateSize(keys, config.hidden_size);
  config.norm_eps = keys.Number(names.norm_eps, 1e-6);
  if (!(config.norm_eps >= kMinNormEps && config.norm_eps <= 1)) {
    keys.Invalid(names.norm_eps, absl::StrCat("must be between ", kMinNormEps, " and 1"));
  }
  config.qk_norm = fox ? keys.Bool("qk_norm", false) : type.qk_norm;
  config.qkv_bias = fox ? keys.Bool("qkv_bias", false) : type.qkv_bias;
  config.tie_word_embeddings = keys.Bool("tie_word_embeddings", false);
  config.max_position_embeddings =
      keys.OptionalInteger("max_position_embeddings", 1, std::numeric_limits<int32_t>::max());
  RefuseQuantized(keys);
  ReadTokenIds(keys, type.has_token_ids, config);
}

Activation ReadHiddenAct(KeyReader& keys, bool sigmoid_exists) {
  const std::string name = keys.String("hidden_act", "swish");
  if (name == "swish" || name == "silu") return Activation::kSilu;
  if (name == "sigmoid" && sigmoid_exists) return Activation::kSigmoid;
  keys.Unsupported("hidden_act", Quoted(name) + " is not supported: silu");
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

// The activation of the output gate; no value: no gate. Without a gate, ogate_act is ignored.
std::optional<Activation> ReadOutputGate(KeyReader& keys) {
  if (!keys.Bool("use_output_gate", false)) return std::nullopt;
  const std::string name = keys.String("ogate_act", "sigmoid");
  if (name == "sigmoid") return Activation::kSigmoid;
  if (name == "silu") return Activation::kSilu;
  keys.Unsupported("ogate_act", Quoted(name) + " is not supported");
  return std::nullopt;
}

void ReadWeightBlocks(KeyReader& keys, ModelConfig& config) {
  config.weight_blocks = keys.String("weight_blocks", "");
  if (config.weight_blocks != "" && config.weight_blocks != "q8" && config.weight_blocks != "q4") {
    keys.Invalid("weight_blocks", "must be q8 or q4");
  }
}

void ReadLogPruningTolerance(KeyReader& keys, ModelConfig& config) {
  config.log_pruning_tolerance = keys.OptionalNumber("log_pruning_tolerance");
  if (config.log_pruning_tolerance && !(*config.log_pruning_tolerance < 0)) {
    keys.Invalid("log_pruning_tolerance", "must be negative or null");
  }
}

// num_kv_heads and qkv_bias go beyond the reference: the converter writes FLA models in this layout
// and needs them.
void ReadOfficial(KeyReader& keys, ModelConfig& config) {
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
  ReadLogPruningTolerance(keys, config);
  ReadWeightBlocks(keys, config);
}

void ReadFla(KeyReader& keys, ModelConfig& config) {
  config.hidden_act = ReadHiddenAct(keys, /*sigmoid_exists=*/false);
  if (keys.Bool("use_output_gate", false)) config.output_gate = Activation::kSigmoid;
  // The reference trims its cache to the window but never masks by it: the result would depend on
  // how a prompt was cut.
  keys.RefuseUnlessNull("window_size");
  keys.RefuseUnlessNull("attnres_block_size");
}

void RefuseUnlessFalse(KeyReader& keys, const std::string& key) {
  if (keys.Bool(key, false)) keys.Unsupported(key, "is not supported: it must be false");
}

// Keys that transformers does not have, of a model that foxify trained to forget.
void ReadAdditions(KeyReader& keys, ModelConfig& config) {
  const bool forgets = keys.Bool("use_forget_gate", false);
  config.forget_gate = forgets ? ForgetGate::kFull : ForgetGate::kNone;
  config.attention_sink = keys.Bool("use_attention_sink", false);
  config.qk_norm_cap = keys.Bool("use_qk_norm_cap", false);
  if (config.qk_norm_cap && config.qk_norm) {
    keys.Unsupported("use_qk_norm_cap", "is not supported together with QK-norm");
  }
  if (config.qk_norm_cap && !forgets) {
    keys.Unsupported("use_qk_norm_cap", "is not supported without use_forget_gate");
  }
  ReadLogPruningTolerance(keys, config);
  ReadWeightBlocks(keys, config);
}

// Reads the window of layers that attend to the last keys only. All layers of a Mistral slide. The
// layers of a Qwen do if use_sliding_window is set: the layers that layer_types names or, without
// it, the layers from max_window_layers on.
void ReadSlidingWindow(KeyReader& keys, absl::string_view type, ModelConfig& config) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const bool is_qwen = type == "qwen2" || type == "qwen3";
  bool slides = type == "mistral" || (is_qwen && keys.Bool("use_sliding_window", false));
  if (const nlohmann::json* layers = keys.Find("layer_types")) {
    bool names_one = false;
    for (const nlohmann::json& layer : *layers) {
      names_one = names_one || layer == "sliding_attention";
      if (layer != "full_attention" && !(slides && layer == "sliding_attention")) {
        keys.Unsupported("layer_types", "must be full_attention");
      }
    }
    slides = slides && (names_one || !is_qwen);
  } else if (is_qwen && slides) {
    slides = keys.Integer("max_window_layers", 28, 0, kMax) < config.num_layers;
  }
  if (!slides) return;
  config.sliding_window = 4096;  // of the classes
  if (keys.Has("sliding_window")) {
    config.sliding_window = keys.OptionalInteger("sliding_window", 1, kMax);
  }
  if (is_qwen && !config.sliding_window && keys.Find("layer_types") != nullptr) {
    keys.Unsupported("sliding_window", "is null, and layer_types names layers that slide");
  }
}

absl::Status ReadTransformers(KeyReader& keys, const ModelType& type, ModelConfig& config) {
  if (const nlohmann::json* given = keys.Find("architectures")) {
    for (const nlohmann::json& name : *given) {
      // Forks and trainers rename the class; one with code of its own may be another model, unless
      // the code is modeling_fox.py, whose gates count by their own keys.
      const bool renamed = name.is_string() && !keys.Has("auto_map") &&
                           name.get<std::string>().ends_with("ForCausalLM");
      const bool ours = name == absl::StrCat("Fox", type.architecture);
      if (name == type.architecture || renamed || ours) continue;
      keys.Unsupported("architectures",
                       absl::StrCat("of ", type.name, " must be ", type.architecture));
    }
  }
  ReadAdditions(keys, config);
  config.qk_norm_per_head = false;
  config.qk_norm_eps = config.norm_eps;
  config.hidden_act = ReadHiddenAct(keys, /*sigmoid_exists=*/false);
  const absl::string_view name = type.name;
  if (name == "llama" || name == "qwen3") RefuseUnlessFalse(keys, "attention_bias");  // o's, too
  if (name == "llama") RefuseUnlessFalse(keys, "mlp_bias");
  if (!keys.Bool("is_causal", true)) {
    keys.Unsupported("is_causal", "must be true, or tokens would attend to later ones");
  }
  if (keys.Find("transformers_weights") != nullptr) {
    keys.Unsupported("transformers_weights",
                     "is not supported: name that file model.safetensors, and remove the key");
  }
  ReadSlidingWindow(keys, name, config);
  config.use_rope = true;
  return ReadRope(keys, config.head_dim, config.rope_base, config.rope_scaling,
                  config.max_position_embeddings);
}

// Properties of every accepted configuration, which all later code relies on.
void CheckInvariants(const ModelConfig& config) {
  FOX_CHECK(config.num_layers >= 1 && config.num_kv_heads >= 1);
  FOX_CHECK(config.num_heads % config.num_kv_heads == 0);
  FOX_CHECK(config.head_dim >= 1 && config.head_dim <= kMaxHeadDim);
  FOX_CHECK(config.intermediate_size >= 1 && config.intermediate_size <= kMaxIntermediate);
  FOX_CHECK(!config.use_rope || (config.head_dim % 2 == 0 && config.rope_base > 0));
  FOX_CHECK(!config.qk_norm_cap || !config.qk_norm);
  for (const int32_t id : config.eos_token_ids) FOX_CHECK(id >= 0 && id < config.vocab_size);
}

}  // namespace

std::vector<double> RopeFrequencies(const ModelConfig& config) {
  if (!config.use_rope) return {};
  FOX_CHECK(config.head_dim % 2 == 0);
  std::vector<double> frequency(static_cast<size_t>(config.head_dim / 2));
  const RopeScaling& scaling = config.rope_scaling;
  FOX_CHECK(scaling.factor >= 1 && scaling.high != scaling.low);
  for (size_t m = 0; m < frequency.size(); ++m) {
    double& f = frequency[m];
    const auto number = static_cast<double>(m);
    f = std::pow(config.rope_base, -2.0 * number / config.head_dim);
    const double turns = static_cast<double>(scaling.context) * f / (2 * std::numbers::pi);
    const double x = scaling.by_number ? number : turns;
    const double kept = std::clamp((x - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0);
    f *= kept + (1 - kept) / scaling.factor;
  }
  return frequency;
}

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json) {
  const auto parsed = ReadJsonObject(json, kConfigLimits, "config.json");
  if (!parsed.ok()) return parsed.status();
  KeyReader keys(*parsed, "config.json");
  if (!keys.Has("model_type")) keys.Invalid("model_type", "is missing");
  const std::string model_type = keys.String("model_type", "");
  if (!keys.status().ok()) return keys.status();
  const auto* type = std::find_if(std::begin(kModelTypes), std::end(kModelTypes),
                                  [&](const ModelType& known) { return model_type == known.name; });
  if (type == std::end(kModelTypes)) {
    const auto append = [](std::string* out, const ModelType& known) { *out += known.name; };
    return absl::UnimplementedError(
        absl::StrCat("config.json: model_type ", Quoted(model_type),
                     " is not supported: ", absl::StrJoin(kModelTypes, ", ", append)));
  }
  ModelConfig config;
  config.layout = type->layout;
  ReadSizes(keys, *type, config);
  if (!keys.status().ok()) return keys.status();
  absl::Status status;
  switch (type->layout) {
    case CheckpointLayout::kOfficial:
      ReadOfficial(keys, config);
      break;
    case CheckpointLayout::kFla:
      ReadFla(keys, config);
      break;
    case CheckpointLayout::kTransformers:
      status = ReadTransformers(keys, *type, config);
  }
  status.Update(keys.status());
  if (!status.ok()) return status;
  CheckInvariants(config);
  return config;
}

absl::StatusOr<std::string> ReadConfigText(const ModelDir& dir) {
  if (dir.Contains("adapter_config.json")) {
    return absl::UnimplementedError(
        "adapter_config.json: the model directory has an adapter, which transformers would apply "
        "to its base: foxserve convert BASE DIR --adapter THIS merges it; remove this file if the "
        "weights here have it merged");
  }
  if (!dir.Contains("config.json")) return dir.NoCheckpoint("config.json: no such file");
  return dir.ReadText("config.json", kConfigLimits.max_bytes);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const ModelDir& dir) {
  const absl::StatusOr<std::string> json = ReadConfigText(dir);
  if (!json.ok()) return json.status();
  return ParseModelConfig(*json);
}

}  // namespace fox
