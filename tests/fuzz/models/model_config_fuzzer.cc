// ParseModelConfig: accepted values are within the bounds that all later code relies on, and
// means the same when the file is written again with its keys in another order.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/checkpoint/model_config.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

std::string Described(const ModelConfig& c) {
  return absl::StrCat(
      absl::StrJoin({c.vocab_size, c.hidden_size, c.intermediate_size, int64_t{c.num_layers},
                     int64_t{c.num_heads}, int64_t{c.num_kv_heads}, int64_t{c.head_dim},
                     static_cast<int64_t>(c.layout), static_cast<int64_t>(c.hidden_act),
                     static_cast<int64_t>(c.forget_gate),
                     c.output_gate ? static_cast<int64_t>(*c.output_gate) : -1,
                     c.max_position_embeddings.value_or(-1), int64_t{c.bos_token_id.value_or(-1)},
                     int64_t{c.pad_token_id.value_or(-1)}},
                    " "),
      " ", c.norm_eps, " ", c.qk_norm_eps, " ", c.rope_base, " ", c.rope_scaling.factor, " ",
      c.rope_scaling.low, " ", c.rope_scaling.high, " ", c.rope_scaling.context, " ",
      c.rope_scaling.by_number, " ", c.rope_scaling.attention_factor, " ",
      c.log_pruning_tolerance.value_or(0), " ",
      absl::StrJoin({c.output_norm, c.qk_norm, c.qk_norm_per_head, c.k_shift, c.v_shift, c.qkv_bias,
                     c.use_rope, c.tie_word_embeddings, c.attention_sink, c.qk_norm_cap},
                    ""),
      " ", absl::StrJoin(c.eos_token_ids, ","));
}

void CheckBounds(const ModelConfig& c) {
  FOX_CHECK(c.vocab_size >= 1 && c.vocab_size <= 1 << 24);
  FOX_CHECK(c.hidden_size >= 1 && c.hidden_size <= 65536);
  FOX_CHECK(c.intermediate_size >= 1 && c.intermediate_size <= 1 << 20);
  FOX_CHECK(c.num_layers >= 1 && c.num_layers <= 1024);
  FOX_CHECK(c.num_kv_heads >= 1 && c.num_heads % c.num_kv_heads == 0 && c.num_heads <= 1024);
  FOX_CHECK(c.head_dim >= 1 && c.head_dim <= 256);
  FOX_CHECK(c.layout == CheckpointLayout::kTransformers || c.q_size() == c.hidden_size);
  FOX_CHECK(c.rope_scaling.factor >= 1 && c.rope_scaling.attention_factor >= 0.1);
  for (const double frequency : RopeFrequencies(c)) FOX_CHECK(std::isfinite(frequency));
  FOX_CHECK(!c.use_rope || c.head_dim % 2 == 0);
  FOX_CHECK(c.norm_eps > 0 && c.norm_eps <= 1);
  FOX_CHECK(c.rope_base > 0);
  FOX_CHECK(!c.log_pruning_tolerance || *c.log_pruning_tolerance < 0);
  FOX_CHECK(!c.max_position_embeddings || *c.max_position_embeddings >= 1);
  const auto in_vocabulary = [&c](int32_t id) { return id >= 0 && id < c.vocab_size; };
  FOX_CHECK(!c.bos_token_id || in_vocabulary(*c.bos_token_id));
  FOX_CHECK(!c.pad_token_id || in_vocabulary(*c.pad_token_id));
  FOX_CHECK(c.eos_token_ids.size() <= 64);
  for (const int32_t id : c.eos_token_ids) FOX_CHECK(in_vocabulary(id));
}

}  // namespace

FUZZ_TEST(model_config) {
  const std::string text = in.Rest();
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) return CheckRefusal(config.status());
  CheckBounds(*config);
  const absl::StatusOr<ModelConfig> again =
      ParseModelConfig(nlohmann::json::parse(text, nullptr, false).dump());
  FOX_CHECK(again.ok() && Described(*again) == Described(*config));
}

}  // namespace fox
