// config.json of every layout: defaults, bounds, types and refusals. Damaged files:
// tests/fuzz/models/model_config_fuzzer.cc.
#include "models/checkpoint/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/models/refused.h"
#include "tests/models/temporary_dir.h"

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

TEST(ModelConfigTest, FlaIgnoresKeysThatItsModelNeverReads) {
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
  EXPECT_TRUE(Parsed(Config(kOfficial, R"("eos_token_id": 32000)")).eos_token_ids.empty());
  EXPECT_EQ(Parsed(Config(kOfficial, R"("eos_token_id": [1, -1])")).eos_token_ids,
            std::vector<int32_t>{1});
  EXPECT_FALSE(Parsed(Config(kOfficial, R"("bos_token_id": -1)")).bos_token_id.has_value());
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
  ExpectError(Config("gpt2", R"("num_heads": "x")"),
              "model_type \"gpt2\" is not supported: forgetting_transformer-project_fox, "
              "forgetting_transformer, llama, mistral, qwen2, qwen3");
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
      {R"("norm_eps": 0)", "norm_eps must be between 1e-30 and 1"},
      {R"("norm_eps": 9e-31)", "norm_eps must be between 1e-30 and 1"},
      {R"("norm_eps": NaN)", "norm_eps must be a number"},
      {R"("norm_eps": null)", "norm_eps must be a number"},
      {R"("hidden_ratio": 0)", "hidden_ratio must be above 0"},
      {R"("hidden_ratio": 1e300)", "hidden_ratio must be above 0"},
      {R"("hidden_ratio": 1024)", "hidden_ratio makes the intermediate size"},
      {R"("intermediate_size": 0)", "intermediate_size must be between"},
      {R"("log_pruning_tolerance": 0)", "log_pruning_tolerance must be negative"},
      {R"("log_pruning_tolerance": 3)", "log_pruning_tolerance must be negative"},
      {R"("log_pruning_tolerance": -1e999)", "a number too large for a double"},
      {R"("log_pruning_tolerance": -Infinity)", "log_pruning_tolerance must be a number"},
      {R"("log_pruning_tolerance": "-10")", "log_pruning_tolerance must be a number"},
      {R"("weight_blocks": "q5")", "weight_blocks must be q8 or q4"},
      {R"("weight_blocks": 8)", "weight_blocks must be a string"},
      {R"("max_position_embeddings": 0)", "max_position_embeddings must be between"},
      {R"("fgate_type": 1)", "fgate_type must be a string"},
  };
  for (const auto& c : kCases) ExpectError(Config(kOfficial, c.keys), c.part);
}

// A config.json of transformers: the sizes that every file must have, and `keys`, which may replace
// them.
std::string TransformersConfig(const std::string& type, const std::string& keys) {
  auto json = nlohmann::json::parse(
      Config(type, R"("vocab_size": 100, "hidden_size": 96, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2)"));
  if (type == "mistral") json["sliding_window"] = nullptr;
  json.update(nlohmann::json::parse("{" + keys + "}"));
  return json.dump();
}

TEST(ModelConfigTest, TransformersIsAFoxWithoutGates) {
  const struct {
    const char* type = "";
    bool qkv_bias = false, qk_norm = false;
    std::optional<int32_t> bos;
  } kClasses[] = {{"llama", false, false, 1},
                  {"mistral", false, false, 1},
                  {"qwen2", true, false, std::nullopt},
                  {"qwen3", false, true, std::nullopt}};
  for (const auto& c : kClasses) {
    SCOPED_TRACE(c.type);
    const ModelConfig config = Parsed(TransformersConfig(
        c.type, R"("rms_norm_eps": 1e-3, "head_dim": 32, "qk_norm": 7, "window_size": 4,
          "rope_theta": 1e6, "rope_scaling": null, "tie_word_embeddings": true)"));
    EXPECT_EQ(config.layout, CheckpointLayout::kTransformers);
    EXPECT_EQ(config.forget_gate, ForgetGate::kNone);
    EXPECT_EQ(config.qkv_bias, c.qkv_bias);
    EXPECT_EQ(config.qk_norm, c.qk_norm);
    EXPECT_FALSE(config.qk_norm_per_head || config.output_norm || config.k_shift || config.v_shift);
    EXPECT_EQ(config.output_gate, std::nullopt);
    EXPECT_EQ(config.norm_eps, 1e-3);
    EXPECT_EQ(config.qk_norm_eps, 1e-3);
    EXPECT_EQ(config.q_size(), 192);
    EXPECT_EQ(config.kv_size(), 64);
    EXPECT_TRUE(config.use_rope && config.tie_word_embeddings);
    EXPECT_EQ(config.rope_base, 1e6);
    EXPECT_EQ(config.rope_scaling.factor, 1);
    EXPECT_EQ(config.bos_token_id, c.bos);
    EXPECT_EQ(config.eos_token_ids.empty(), !c.bos.has_value());
  }
  const ModelConfig least = Parsed(TransformersConfig("llama", ""));
  EXPECT_EQ(least.head_dim, 16);
  EXPECT_EQ(least.rope_base, 10000);
}

TEST(ModelConfigTest, AModelThatWasTaughtToForget) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    SCOPED_TRACE(type);
    std::string keys = R"("use_forget_gate": true, "use_attention_sink": true,
        "log_pruning_tolerance": -8)";
    const bool caps = type != std::string("qwen3");
    if (caps) keys += R"(, "use_qk_norm_cap": true)";
    const ModelConfig config = Parsed(TransformersConfig(type, keys));
    EXPECT_EQ(config.forget_gate, ForgetGate::kFull);
    EXPECT_EQ(config.num_gates(), 2);
    EXPECT_TRUE(config.attention_sink);
    EXPECT_EQ(config.qk_norm_cap, caps);
    EXPECT_EQ(config.log_pruning_tolerance, -8);
  }
  const ModelConfig none = Parsed(TransformersConfig("llama", R"("use_forget_gate": false)"));
  EXPECT_EQ(none.forget_gate, ForgetGate::kNone);
  EXPECT_FALSE(none.attention_sink || none.qk_norm_cap || none.log_pruning_tolerance);
}

// As transformers 4 wrote it and as 5 does.
TEST(ModelConfigTest, RopeScaling) {
  const std::string longest = R"("max_position_embeddings": 2048, )", base = R"("rope_theta": 5e5)";
  const std::string linear = R"("factor": 4)";
  const std::string llama3 = R"("factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 8192)";
  for (const std::string& keys : {
           base + R"(, "rope_scaling": {"type": "linear", )" + linear + "}",
           R"("rope_parameters": {"rope_type": "linear", )" + linear + ", " + base + "}",
           base + R"(, "rope_scaling": {"rope_type": "llama3", )" + llama3 + "}",
           R"("rope_parameters": {"rope_type": "llama3", )" + llama3 + ", " + base + "}",
       }) {
    SCOPED_TRACE(keys);
    const ModelConfig config = Parsed(TransformersConfig("llama", longest + keys));
    const bool mixes = keys.find("llama3") != std::string::npos;
    EXPECT_EQ(config.rope_base, 5e5);
    EXPECT_EQ(config.max_position_embeddings, mixes ? 2048 : 8192);
    EXPECT_EQ(config.rope_scaling.factor, mixes ? 8 : 4);
    EXPECT_EQ(config.rope_scaling.low, mixes ? 1 : 0);
    EXPECT_EQ(config.rope_scaling.high, mixes ? 4 : 1);
    EXPECT_EQ(config.rope_scaling.context, mixes ? 8192 : 0);
  }
}

// The length is the context of training times the factor, whatever max_position_embeddings is.
TEST(ModelConfigTest, LengthUnderYarn) {
  const auto length = [](const std::string& context, const std::string& keys) {
    return *Parsed(TransformersConfig("qwen2", R"("max_position_embeddings": 40960, )" + context +
                                                   R"("rope_scaling": {"type": "yarn", )" + keys +
                                                   "}"))
                .max_position_embeddings;
  };
  EXPECT_EQ(length("", R"("factor": 4, "original_max_position_embeddings": 32768)"), 131072);
  EXPECT_EQ(length("", R"("factor": 2.5)"), 102400);
  EXPECT_EQ(length(R"("original_max_position_embeddings": 1000, )", R"("factor": 1.5)"), 1500);
  EXPECT_EQ(length("", R"("factor": 1e9)"), std::numeric_limits<int32_t>::max());
}

TEST(ModelConfigTest, ScalingsOfRopeAreRefusedByName) {
  const auto expect = [](const std::string& type, const std::string& keys, const char* part) {
    ExpectError(TransformersConfig("llama", R"("rope_scaling": {"factor": 4, "rope_type": ")" +
                                                type + "\"" + keys + "}"),
                part);
  };
  for (const char* type : {"dynamic", "longrope", "su"}) {
    expect(type, "", "not supported: a longer text would need other frequencies for the keys");
  }
  expect("ntk", "", "rope_type \"ntk\" is not supported: default, linear, llama3 or yarn");
  expect("yarn", "", "original_max_position_embeddings is missing");
  const std::string context = R"(, "original_max_position_embeddings": 64)";
  expect("yarn", context + R"(, "beta_slow": 33)",
         "beta_slow must be above 0, and beta_fast from there to 1e6");
  expect("yarn", context + R"(, "attention_factor": 0)", "attention_factor must be from 0.1 to 10");
}

TEST(ModelConfigTest, UnsupportedOptionsOfTransformersAreRefusedByName) {
  const struct {
    const char* type;
    const char* keys;
    const char* part;
  } kCases[] = {
      {"llama", R"("architectures": ["LlamaForSequenceClassification"])",
       "architectures of llama must be LlamaForCausalLM"},
      {"qwen2", R"("architectures": "Qwen2Model")", "architectures of qwen2 must be Qwen2ForCaus"},
      {"llama", R"("vocab_size": null)", "vocab_size is missing"},
      {"llama", R"("num_attention_heads": null)", "num_attention_heads is missing"},
      {"llama", R"("num_attention_heads": 7)",
       "hidden_size must be a multiple of num_attention_he"},
      {"llama", R"("num_key_value_heads": 4)", "must be a multiple of num_key_value_heads"},
      {"llama", R"("head_dim": 257)", "head_dim must be between 1 and 256"},
      {"qwen3", R"("head_dim": 15)", "head_dim must be even"},
      {"llama", R"("rms_norm_eps": 0)", "rms_norm_eps must be between"},
      {"llama", R"("hidden_act": "gelu")", "hidden_act \"gelu\" is not supported: silu"},
      {"llama", R"("attention_bias": true)", "attention_bias is not supported: it must be false"},
      {"qwen3", R"("attention_bias": true)", "attention_bias is not supported: it must be false"},
      {"llama", R"("mlp_bias": true)", "mlp_bias is not supported: it must be false"},
      {"mistral", R"("sliding_window": 0)", "sliding_window must be between 1 and"},
      {"qwen3", R"("layer_types": ["full_attention", "sliding_attention"])",
       "layer_types must be full_attention"},
      {"qwen3", R"("use_forget_gate": true, "use_qk_norm_cap": true)",
       "use_qk_norm_cap is not supported together with QK-norm"},
      {"llama", R"("use_qk_norm_cap": true)",
       "use_qk_norm_cap is not supported without use_forget_gate"},
      {"llama", R"("use_attention_sink": 1)", "use_attention_sink must be true or false"},
      {"llama", R"("use_forget_gate": true, "log_pruning_tolerance": 0)",
       "log_pruning_tolerance must be negative or null"},
      {"llama", R"("quantization_config": {})", "quantization_config is not supported"},
      {"llama", R"("transformers_weights": "alt.safetensors")", "name that file model.safetensors"},
      {"llama", R"("partial_rotary_factor": 0.5)", "partial_rotary_factor is not supported"},
      {"llama", R"("rope_theta": 0)", "rope_theta must be above 0"},
      {"llama", R"("rope_scaling": {"type": "linear", "factor": 0.5})",
       "config.json: rope_scaling: factor must be at least 1"},
      {"llama", R"("rope_scaling": {"type": "linear"})", "rope_scaling: factor must be at least 1"},
      {"llama", R"("rope_scaling": {"type": "dynamic", "factor": 4})", "rope_type \"dynamic\""},
      {"llama", R"("rope_parameters": {"full_attention": {}})",
       "rope_parameters: full_attention is not supported: one RoPE serves all layers"},
      {"llama", R"("rope_scaling": 4)", "rope_scaling must be an object"},
      {"llama", R"("quantization_config": {"quant_method": "gptq"})",
       "quantization_config is not supported (gptq): take the repository of the model in bf16"},
      {"llama", R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25})",
       "rope_parameters: partial_rotary_factor is not supported: it must be 1"},
      {"llama", R"("rope_parameters": {"rope_type": "default", "rope_theta": -1})",
       "rope_parameters: rope_theta must be above 0"},
      {"llama", R"("rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 0})",
       "low_freq_factor must be above 0"},
      {"llama", R"("rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
          "high_freq_factor": 4})",
       "high_freq_factor must be above low_freq_factor"},
      {"llama", R"("rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1,
          "high_freq_factor": 4})",
       "original_max_position_embeddings is missing"},
  };
  for (const auto& c : kCases) ExpectError(TransformersConfig(c.type, c.keys), c.part);
  // The class does not read this key.
  Parsed(TransformersConfig("llama", R"("sliding_window": 4096)"));
  Parsed(TransformersConfig("qwen2", R"("sliding_window": 4096, "use_sliding_window": false,
      "attention_bias": true, "layer_types": ["full_attention", "full_attention"])"));
}

// A config that is accepted has the values that transformers reads (make_transformers_configs.py).
TEST(ModelConfigTest, AsTransformersReadsIt) {
  const auto golden =
      nlohmann::json::parse(FileContent(FOX_SOURCE_DIR "/tests/golden/transformers_configs.json"));
  int served = 0;
  for (const auto& c : golden["cases"]) {
    const auto text = c["config"].get<std::string>();
    SCOPED_TRACE(text);
    const absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
    if (!c.contains("reading")) {
      ExpectRefused(config.status(), "config.json: ");
      ExpectRefused(config.status(), c.value("refused", ""));  // the key at fault
      continue;
    }
    ASSERT_TRUE(config.ok()) << config.status();
    ++served;
    const auto& reading = golden["readings"][c["reading"].get<size_t>()];
    EXPECT_EQ(config->num_heads, reading["heads"]);
    EXPECT_EQ(config->num_kv_heads, reading["kv_heads"]);
    EXPECT_EQ(config->head_dim, reading["head_dim"]);
    EXPECT_EQ(config->norm_eps, reading["norm_eps"]);
    EXPECT_EQ(config->tie_word_embeddings, reading["tied"]);
    EXPECT_EQ(config->sliding_window.value_or(0), reading["window"]);
    const auto frequencies = reading["inv_freq"].get<std::vector<double>>();
    const std::vector<double> ours = RopeFrequencies(*config);
    ASSERT_EQ(ours.size(), frequencies.size());
    for (size_t m = 0; m < ours.size(); ++m) EXPECT_NEAR(ours[m] / frequencies[m], 1, 1e-13) << m;
    EXPECT_NEAR(config->rope_scaling.attention_factor, reading["rope_factor"], 1e-15);
    const auto exists = [vocabulary = config->vocab_size](const nlohmann::json& id) {
      return id.is_number() && id >= 0 && id < vocabulary;
    };
    EXPECT_EQ(config->bos_token_id.value_or(-1),
              exists(reading["bos"]) ? reading["bos"].get<int>() : -1);
    std::vector<int32_t> eos;
    for (const auto& id : reading["eos"]) {
      if (exists(id)) eos.push_back(id);
    }
    EXPECT_EQ(config->eos_token_ids, eos);
  }
  EXPECT_GT(served, 200);
}

TEST(ModelConfigTest, JsonItself) {
  ExpectError("[]", "not a JSON object");
  ExpectError("{}", "model_type is missing");
  ExpectError(R"({"model_type": 1})", "model_type must be a string");
  ExpectError(R"({"model_type": null})", "model_type must be a string");
  ExpectError(Config(kOfficial, "") + std::string("\0x", 2), "NUL");
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
