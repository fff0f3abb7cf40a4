// config.json of both layouts: defaults, bounds, types, and what is refused. Damaged files:
// tests/fuzz/models/model_config_fuzzer.cc.
#include "models/model_config.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/models/refused.h"

namespace fox {
namespace {

constexpr char kOfficial[] = "forgetting_transformer-project_fox";
constexpr char kFla[] = "forgetting_transformer";

// An unread key "a" with this value.
std::string UnreadKey(const std::string& value) {
  std::string text = "\"a\": ";
  text += value;
  return text;
}

// A config.json of `type` with further keys: `"a": 1, "b": 2`.
std::string Config(const std::string& type, const std::string& keys) {
  std::string json = R"({"model_type": ")";
  json += type;
  json += keys.empty() ? "\"" : "\", ";
  json += keys;
  json += "}";
  return json;
}

ModelConfig Parsed(const std::string& json) {
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(json);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.value_or(ModelConfig());
}

void ExpectError(const std::string& json, const std::string& part) {
  SCOPED_TRACE(json.substr(0, 200));
  ExpectRefused(ParseModelConfig(json).status(), part);
}

TEST(ModelConfigTest, OfficialDefaults) {
  const ModelConfig config = Parsed(Config(kOfficial, ""));
  EXPECT_EQ(config.layout, CheckpointLayout::kOfficial);
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.hidden_size, 2048);
  EXPECT_EQ(config.intermediate_size, 5632);  // int(2048 * 4 * 2 / 3) = 5461, up to 22 * 256
  EXPECT_EQ(config.num_layers, 24);
  EXPECT_EQ(config.num_heads, 32);
  EXPECT_EQ(config.num_kv_heads, 32);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.hidden_act, Activation::kSilu);
  EXPECT_EQ(config.forget_gate, ForgetGate::kFull);
  EXPECT_EQ(config.output_gate, std::nullopt);
  EXPECT_FALSE(config.output_norm || config.qk_norm || config.k_shift || config.v_shift);
  EXPECT_FALSE(config.qkv_bias || config.use_rope || config.tie_word_embeddings);
  EXPECT_TRUE(config.qk_norm_per_head);
  EXPECT_EQ(config.rope_base, 500000.0);
  EXPECT_FALSE(config.log_pruning_tolerance.has_value());
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_FALSE(config.pad_token_id.has_value());
}

TEST(ModelConfigTest, ReleasedProModel) {
  const ModelConfig config =
      Parsed(Config(kOfficial, R"("vocab_size": 50277, "hidden_size": 1536, "num_heads": 24,
        "hidden_ratio": 3.5, "intermediate_size": null, "num_kv_heads": null, "qk_norm": true,
        "qk_norm_share_param_across_head": true, "use_k_shift": true, "use_v_shift": true,
        "use_output_gate": true, "ogate_act": "sigmoid", "use_output_norm": true,
        "log_pruning_tolerance": -10.0, "bos_token_id": null, "eos_token_id": null,
        "attention_bias": false, "window_size": 512, "fuse_norm": true)"));
  EXPECT_EQ(config.intermediate_size, 3584);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_FALSE(config.qk_norm_per_head);
  EXPECT_EQ(config.output_gate, Activation::kSigmoid);
  EXPECT_EQ(config.log_pruning_tolerance, -10.0);
  EXPECT_FALSE(config.bos_token_id.has_value());
  EXPECT_TRUE(config.eos_token_ids.empty());
}

TEST(ModelConfigTest, ConvertedDirectoryKeepsGroupsAndBiases) {
  const ModelConfig config =
      Parsed(Config(kOfficial, R"("num_heads": 32, "num_kv_heads": 8, "qkv_bias": true)"));
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.kv_size(), 512);
  EXPECT_EQ(config.group_size(), 4);
  EXPECT_TRUE(config.qkv_bias);
}

TEST(ModelConfigTest, FlaIgnoresWhatItsModelNeverReads) {
  const ModelConfig config =
      Parsed(Config(kFla, R"("num_kv_heads": 4, "use_output_gate": true, "qk_norm": true,
        "use_rope": true, "fgate_type": "none", "use_k_shift": true, "ogate_act": 3,
        "log_pruning_tolerance": "x", "window_size": null, "attnres_block_size": null)"));
  EXPECT_EQ(config.layout, CheckpointLayout::kFla);
  EXPECT_EQ(config.forget_gate, ForgetGate::kFull);
  EXPECT_EQ(config.output_gate, Activation::kSigmoid);
  EXPECT_TRUE(config.qk_norm && config.qk_norm_per_head);
  EXPECT_FALSE(config.use_rope || config.k_shift || config.output_norm);
  EXPECT_FALSE(config.log_pruning_tolerance.has_value());
}

TEST(ModelConfigTest, EndOfSequenceIsNumberListOrNull) {
  EXPECT_EQ(Parsed(Config(kOfficial, R"("eos_token_id": 7)")).eos_token_ids,
            std::vector<int32_t>{7});
  EXPECT_EQ(Parsed(Config(kOfficial, R"("eos_token_id": [7, 0, 31999])")).eos_token_ids,
            (std::vector<int32_t>{7, 0, 31999}));
  EXPECT_TRUE(Parsed(Config(kOfficial, R"("eos_token_id": null)")).eos_token_ids.empty());
  EXPECT_FALSE(Parsed(Config(kOfficial, R"("pad_token_id": -1)")).pad_token_id.has_value());
  ExpectError(Config(kOfficial, R"("eos_token_id": 32000)"), "eos_token_id must be between");
  ExpectError(Config(kOfficial, R"("eos_token_id": [1, -1])"), "eos_token_id must be between");
  ExpectError(Config(kOfficial, R"("eos_token_id": "2")"), "eos_token_id must be an integer");
  ExpectError(Config(kOfficial, R"("bos_token_id": 1e3)"), "bos_token_id must be an integer");
}

TEST(ModelConfigTest, EveryGateAndActivation) {
  EXPECT_EQ(Parsed(Config(kOfficial, R"("fgate_type": "bias_only")")).forget_gate,
            ForgetGate::kBiasOnly);
  EXPECT_EQ(Parsed(Config(kOfficial, R"("fgate_type": "fixed")")).forget_gate, ForgetGate::kFixed);
  EXPECT_EQ(Parsed(Config(kOfficial, R"("fgate_type": "none")")).forget_gate, ForgetGate::kNone);
  EXPECT_EQ(
      Parsed(Config(kOfficial, R"("use_output_gate": true, "ogate_act": "silu")")).output_gate,
      Activation::kSilu);
  EXPECT_EQ(Parsed(Config(kOfficial, R"("ogate_act": "silu")")).output_gate, std::nullopt);
  EXPECT_EQ(Parsed(Config(kOfficial, R"("hidden_act": "sigmoid")")).hidden_act,
            Activation::kSigmoid);
  EXPECT_EQ(Parsed(Config(kOfficial, R"("hidden_act": "silu")")).hidden_act, Activation::kSilu);
}

TEST(ModelConfigTest, UnsupportedFeaturesNameTheirKey) {
  ExpectError(Config(kFla, R"("window_size": 512)"), "window_size");
  ExpectError(Config(kFla, R"("attnres_block_size": 4)"), "attnres_block_size");
  ExpectError(Config(kFla, R"("hidden_act": "powlu")"), "hidden_act \"powlu\"");
  ExpectError(Config(kFla, R"("hidden_act": "sigmoid")"), "hidden_act \"sigmoid\"");
  ExpectError(Config(kOfficial, R"("hidden_act": "gelu")"), "hidden_act \"gelu\"");
  ExpectError(Config(kOfficial, R"("fgate_type": "half")"), "fgate_type \"half\"");
  ExpectError(Config(kOfficial, R"("use_output_gate": true, "ogate_act": "tanh")"), "ogate_act");
  ExpectError(
      Config(kOfficial, R"("use_output_gate": true, "ogate_act": "silu", "use_output_norm": true)"),
      "ogate_act");
  ExpectError(Config(kOfficial, R"("qkv_bias": true, "use_k_shift": true)"), "qkv_bias");
  ExpectError(Config(kOfficial, R"("quantization_config": {"bits": 4})"), "quantization_config");
  ExpectError(Config("llama", R"("num_heads": "x")"), "model_type \"llama\"");
}

TEST(ModelConfigTest, BoundsAndTypes) {
  const struct {
    const char* keys;
    const char* part;
  } kCases[] = {
      {R"("vocab_size": 0)", "vocab_size must be between"},
      {R"("vocab_size": 16777217)", "vocab_size must be between"},
      {R"("hidden_size": 2048.0)", "hidden_size must be an integer"},
      {R"("hidden_size": 18446744073709551615)", "hidden_size must be between"},
      {R"("hidden_size": 99999999999999999999999)", "hidden_size must be an integer"},
      {R"("hidden_size": 2049)", "multiple of num_heads"},
      {R"("num_hidden_layers": 0)", "num_hidden_layers must be between"},
      {R"("num_hidden_layers": 1025)", "num_hidden_layers must be between"},
      {R"("num_heads": "32")", "config.json: num_heads must be an integer"},
      {R"("num_heads": 4)", "head larger than 256"},
      {R"("num_kv_heads": 0)", "num_kv_heads must be between"},
      {R"("num_kv_heads": 5)", "multiple of num_kv_heads"},
      {R"("hidden_size": 96, "num_heads": 32, "use_rope": true)", "odd head size"},
      {R"("use_rope": true, "rope_base": 0)", "rope_base must be above 0"},
      {R"("use_rope": 1)", "use_rope must be true or false"},
      {R"("norm_eps": 0)", "norm_eps must be above 0"},
      {R"("norm_eps": null)", "norm_eps must be a number"},
      {R"("hidden_ratio": 0)", "hidden_ratio must be above 0"},
      {R"("hidden_ratio": 1e300)", "hidden_ratio must be above 0"},
      {R"("hidden_ratio": 1024)", "hidden_ratio makes the intermediate size"},
      {R"("intermediate_size": 0)", "intermediate_size must be between"},
      {R"("log_pruning_tolerance": 0)", "log_pruning_tolerance must be negative"},
      {R"("log_pruning_tolerance": 3)", "log_pruning_tolerance must be negative"},
      {R"("log_pruning_tolerance": -1e999)", "not valid JSON"},
      {R"("log_pruning_tolerance": -Infinity)", "not valid JSON"},
      {R"("log_pruning_tolerance": "-10")", "log_pruning_tolerance must be a number"},
      {R"("max_position_embeddings": 0)", "max_position_embeddings must be between"},
      {R"("fgate_type": 1)", "fgate_type must be a string"},
  };
  for (const auto& c : kCases) ExpectError(Config(kOfficial, c.keys), c.part);
}

TEST(ModelConfigTest, JsonItself) {
  ExpectError("", "not valid JSON");
  ExpectError("[]", "not a JSON object");
  ExpectError("{}", "model_type is missing");
  ExpectError(R"({"model_type": 1})", "model_type must be a string");
  ExpectError(R"({"model_type": null})", "model_type must be a string");
  ExpectError(Config(kOfficial, R"("num_heads": 32, "num_heads": 16)"), "duplicate key");
  ExpectError(Config(kOfficial, "") + "x", "not valid JSON");
  ExpectError(Config(kOfficial, "") + std::string("\0x", 2), "NUL");
  ExpectError(Config(kOfficial, UnreadKey("\"\xff\"")), "not valid JSON");
  ExpectError(Config(kOfficial, UnreadKey(std::string(100000, '['))), "nested too deeply");
  ExpectError(Config(kOfficial, UnreadKey(std::string(2 << 20, '7'))), "larger than");
  std::string many = UnreadKey("[0");
  for (int i = 0; i < 400000; ++i) many += ",0";
  ExpectError(Config(kOfficial, many + "]"), "too many JSON values");
  // The object itself is one level of the 64.
  Parsed(Config(kOfficial, UnreadKey(std::string(63, '[') + std::string(63, ']'))));
  ExpectError(Config(kOfficial, UnreadKey(std::string(64, '[') + std::string(64, ']'))),
              "nested too deeply");
  ExpectError(Config(std::string(5000, 'z'), ""), "zzz...");
}

}  // namespace
}  // namespace fox
