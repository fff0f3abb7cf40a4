// ModelConfig: the architecture of one FoX checkpoint, in the field's terms, for any layout. Parsed
// and checked by ParseModelConfig; tensor names live in checkpoint.cc. Sources:
// forgetting-transformer configuration_forgetting_transformer.py and flash-linear-attention
// configuration_forgetting_transformer.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/activation.h"

namespace fox {

class ModelDir;

enum class CheckpointLayout { kOfficial, kFla };
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
  int head_dim = 0;      // hidden_size / num_heads
  double norm_eps = 1e-6;
  Activation hidden_act = Activation::kSilu;
  ForgetGate forget_gate = ForgetGate::kFull;
  std::optional<Activation> output_gate;  // of attention
  bool output_norm = false;
  bool qk_norm = false;          // its eps is kQkNormEps, not norm_eps
  bool qk_norm_per_head = true;  // false: one [head_dim] vector shared by all heads
  bool k_shift = false;
  bool v_shift = false;
  bool qkv_bias = false;
  bool use_rope = false;
  double rope_base = 500000.0;
  bool tie_word_embeddings = false;
  std::optional<double> log_pruning_tolerance;
  std::optional<int64_t> max_position_embeddings;
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // config.json may hold a number or a list
  std::optional<int32_t> pad_token_id;

  int64_t kv_size() const { return static_cast<int64_t>(num_kv_heads) * head_dim; }
  int group_size() const { return num_heads / num_kv_heads; }
};

inline constexpr double kQkNormEps = 1e-5;

// Parses the text of a config.json of either layout. Errors (InvalidArgument, Unimplemented) name
// the key. Unknown keys that the reference implementations never read are ignored.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json);

// The same of the config.json in `dir`; NotFound where there is none.
absl::StatusOr<ModelConfig> ReadModelConfig(const ModelDir& dir);

}  // namespace fox
