// ModelConfig: the architecture of a checkpoint, the same for every layout. A LLaMA is a FoX
// without gates, unless it was trained to have some. Parsed and checked by ParseModelConfig; tensor
// names are in checkpoint.cc. Sources: forgetting-transformer and flash-linear-attention
// configuration_forgetting_transformer.py; transformers
// configuration_{llama,mistral,qwen2,qwen3}.py and modeling_rope_utils.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/activation.h"
#include "models/checkpoint/rope_config.h"

namespace fox {

class ModelDir;

enum class CheckpointLayout { kOfficial, kFla, kTransformers };
// The source of a head's log forget gate: the input, a constant, or none (f = 1).
enum class ForgetGate { kFull, kBiasOnly, kFixed, kNone };

struct ModelConfig {
  CheckpointLayout layout = CheckpointLayout::kOfficial;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;        // D
  int64_t intermediate_size = 0;  // I
  int num_layers = 0;
  int num_heads = 0;     // query heads
  int num_kv_heads = 0;  // divides num_heads; smaller under GQA
  int head_dim = 0;      // hidden_size / num_heads unless config.json has another
  double norm_eps = 1e-6;
  Activation hidden_act = Activation::kSilu;
  ForgetGate forget_gate = ForgetGate::kFull;
  std::optional<Activation> output_gate;  // of attention
  bool output_norm = false;
  bool qk_norm = false;
  bool qk_norm_per_head = true;  // false: one [head_dim] vector shared by all heads
  double qk_norm_eps = 1e-5;     // FoX has this constant and does not use norm_eps
  bool qk_norm_cap = false;  // queries and keys are shortened to a largest norm; not with qk_norm
  bool attention_sink = false;  // each query head has a logit without a value
  bool k_shift = false;
  bool v_shift = false;
  bool qkv_bias = false;
  bool use_rope = false;
  double rope_base = 500000.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  std::optional<double> log_pruning_tolerance;
  std::string weight_blocks;  // "q8", "q4": of the GGUF file that it was converted from; else ""
  std::optional<int64_t> max_position_embeddings;  // after linear and yarn scaling
  // Some layers attend to as many tokens at most, so that up to this length no key is out of reach;
  // longer sequences are refused.
  std::optional<int64_t> sliding_window;
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // config.json may hold a number or a list
  std::optional<int32_t> pad_token_id;

  int64_t q_size() const { return static_cast<int64_t>(num_heads) * head_dim; }
  int64_t kv_size() const { return static_cast<int64_t>(num_kv_heads) * head_dim; }
  int group_size() const { return num_heads / num_kv_heads; }
  // The number of stored forget gates: one for each query head, or for each kv head.
  int num_gates() const {
    return layout == CheckpointLayout::kTransformers ? num_kv_heads : num_heads;
  }
};

// RoPE's angles per position, [head_dim / 2]; empty without RoPE.
std::vector<double> RopeFrequencies(const ModelConfig& config);

// Parses the text of a config.json of any layout. Errors (InvalidArgument, Unimplemented) name
// the key. Unknown keys that the reference implementations never read are ignored.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json);

// The text of the config.json in `dir`. NotFound if there is none.
absl::StatusOr<std::string> ReadConfigText(const ModelDir& dir);

// Parses the config.json in `dir`. NotFound if there is none.
absl::StatusOr<ModelConfig> ReadModelConfig(const ModelDir& dir);

}  // namespace fox
