// Checkpoint::Open on golden checkpoints that are damaged in one place each. The roles of the
// tensors are tested by tests/engine/run/model_runner_golden_test.cc.
#include "models/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "models/checkpoint/safetensors.h"
#include "tests/models/checkpoint/safetensors_writer.h"
#include "tests/models/refused.h"

namespace fox {
namespace {

namespace fs = std::filesystem;

std::string Golden(const std::string& name) {
  return std::string(FOX_SOURCE_DIR) + "/tests/golden/" + name;
}

TensorSpecs ReadTensors(const std::string& path) {
  const std::string file = FileContent(path);
  const auto entries =
      ParseSafetensors({reinterpret_cast<const std::byte*>(file.data()), file.size()}, path);
  EXPECT_TRUE(entries.ok()) << entries.status().ToString();
  TensorSpecs tensors;
  for (const auto& [name, entry] : *entries) {
    tensors[name] = {entry.dtype_name,
                     entry.shape,
                     {reinterpret_cast<const char*>(entry.data.data()), entry.data.size()}};
  }
  return tensors;
}

// A copy of a golden checkpoint to be damaged and opened.
struct Copy {
  explicit Copy(const std::string& golden)
      : config(FileContent(Golden(golden) + "/config.json")),
        tensors(ReadTensors(Golden(golden) + "/model.safetensors")) {}

  void ReplaceInConfig(const std::string& from, const std::string& to) {
    const size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    config.replace(at, from.size(), to);
  }
  absl::StatusOr<Checkpoint> Open(const CheckpointOptions& options = {}) const {
    dir.Write("config.json", config);
    dir.Write("model.safetensors", SafetensorsBytes(tensors));
    return Checkpoint::Open(dir.path(), options);
  }

  std::string config;
  TensorSpecs tensors;
  TemporaryDir dir;
};

// Each tensor of each variant in turn: absent, of another shape, of an integer type, or doubled
// under an unknown name.
TEST(CheckpointTest, EveryTensorIsRequiredWithItsShapeAndType) {
  for (const char* golden : {"tiny_rope", "tiny_fla", "tiny_bias_only", "tiny_fixed_k_shift_only",
                             "transformers/qwen2_kv1_linear", "transformers/mistral_kv1_default",
                             "transformers/llama_kv1_default_tied_forgetting"}) {
    Copy copy(golden);
    const TensorSpecs original = copy.tensors;
    for (const auto& [name, spec] : original) {
      SCOPED_TRACE(std::string(golden) + " " + name);
      copy.tensors.erase(name);
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "\" is missing");
      const bool wide = spec.dtype == "F32";
      const auto count = static_cast<int64_t>(spec.bytes.size() / (wide ? 4 : 2));
      copy.tensors[name] = {spec.dtype, {count, 1}, spec.bytes};
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "\" has shape [");
      copy.tensors[name] = {wide ? "I32" : "I16", spec.shape, spec.bytes};
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "\" has dtype " +
                                              (wide ? "I32" : "I16") + ": quantized weights are");
      copy.tensors[name] = spec;
      copy.tensors[name + "_copy"] = spec;
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "_copy\" is not part of this model");
      copy.tensors.erase(name + "_copy");
    }
    EXPECT_TRUE(copy.Open().ok()) << golden;
  }
}

TEST(CheckpointTest, ConfigurationThatDoesNotFitTheTensors) {
  const std::pair<const char*, const char*> kEdits[] = {
      {"\"vocab_size\": 128", "\"vocab_size\": 127"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1024"},
      {"\"hidden_size\": 64", "\"hidden_size\": 32"},
      {"\"num_heads\": 2", "\"num_heads\": 4"},
      {"\"num_kv_heads\": null", "\"num_kv_heads\": 1"},
      {"\"intermediate_size\": 96", "\"intermediate_size\": null"},
      {"\"qk_norm\": true", "\"qk_norm\": false"},
      {"\"qk_norm_share_param_across_head\": false", "\"qk_norm_share_param_across_head\": true"},
      {"\"use_k_shift\": true", "\"use_k_shift\": false"},
      {"\"use_v_shift\": true", "\"use_v_shift\": false"},
      {"\"use_output_gate\": true", "\"use_output_gate\": false"},
      {"\"use_output_norm\": true", "\"use_output_norm\": false"},
      {"\"fgate_type\": \"full\"", "\"fgate_type\": \"none\""},
      {"\"fgate_type\": \"full\"", "\"fgate_type\": \"fixed\""},
      {"forgetting_transformer-project_fox", "forgetting_transformer"},
  };
  for (const auto& [from, to] : kEdits) {
    SCOPED_TRACE(to);
    Copy copy("tiny_rope");
    copy.ReplaceInConfig(from, to);
    ExpectRefused(copy.Open().status(), "tensor \"");
  }
}

// As in transformers 5, either of two tied matrices may be stored; matrices that differ are not
// tied.
TEST(CheckpointTest, TiedEmbeddings) {
  for (const std::string golden :
       {"tiny_norm_no_gate_tied", "transformers/llama_kv1_linear_tied"}) {
    SCOPED_TRACE(golden);
    Copy copy(golden);
    const bool fox = golden[0] == 't' && golden[1] == 'i';
    const std::string embeddings = fox ? "model.embeddings.weight" : "model.embed_tokens.weight";
    const auto tied = copy.Open();
    ASSERT_TRUE(tied.ok()) << tied.status().ToString();
    EXPECT_EQ(tied->lm_head().data, tied->embeddings().data);
    EXPECT_TRUE(tied->config().tie_word_embeddings);

    copy.tensors["lm_head.weight"] = copy.tensors[embeddings];
    const auto repeated = copy.Open();
    ASSERT_TRUE(repeated.ok()) << repeated.status().ToString();
    EXPECT_EQ(repeated->lm_head().data, repeated->embeddings().data);

    copy.tensors["lm_head.weight"].bytes[77] ^= 1;
    const auto two = copy.Open();
    ASSERT_TRUE(two.ok()) << two.status().ToString();
    EXPECT_NE(two->lm_head().data, two->embeddings().data);
    EXPECT_FALSE(two->config().tie_word_embeddings);
    EXPECT_EQ(std::memcmp(two->lm_head().data, copy.tensors["lm_head.weight"].bytes.data(),
                          copy.tensors["lm_head.weight"].bytes.size()),
              0);

    copy.tensors["lm_head.weight"] = {"BF16", {1}, "ab"};
    ExpectRefused(copy.Open().status(), "lm_head.weight\" has shape");
    copy.tensors["lm_head.weight"] = copy.tensors[embeddings];
    copy.tensors.erase(embeddings);
    const auto alone = copy.Open();
    ASSERT_TRUE(alone.ok()) << alone.status().ToString();
    EXPECT_EQ(alone->lm_head().data, alone->embeddings().data);
    copy.tensors.erase("lm_head.weight");
    ExpectRefused(copy.Open().status(), "tensor \"" + embeddings + "\" is missing");
  }
}

// A checkpoint with the names and shapes of transformers' own model is accepted.
TEST(CheckpointTest, TensorsOfTransformers) {
  const auto golden = nlohmann::json::parse(FileContent(Golden("transformers_configs.json")));
  for (const auto& c : golden["cases"]) {
    if (!c.contains("shapes")) continue;
    Copy copy("tiny_rope");
    copy.config = c["config"].get<std::string>();
    SCOPED_TRACE(copy.config);
    copy.tensors.clear();
    for (const auto& [name, shape] : golden["shapes"][c["shapes"].get<size_t>()].items()) {
      TensorSpec spec{"BF16", shape.get<std::vector<int64_t>>(), ""};
      size_t bytes = 2;
      for (const int64_t extent : spec.shape) bytes *= static_cast<size_t>(extent);
      spec.bytes.assign(bytes, '\0');
      copy.tensors[name] = spec;
      copy.tensors[absl::StrReplaceAll(name, {{"layers.0.", "layers.1."}})] = spec;
    }
    const auto checkpoint = copy.Open();
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  }
}

// Old versions of transformers saved RoPE's frequencies; newer ones ignore and recompute them.
TEST(CheckpointTest, FrequenciesThatTransformersIgnores) {
  Copy copy("transformers/llama_kv3_default");
  copy.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {8}, std::string(32, 0)};
  copy.tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = {"I64", {2}, std::string(16, 0)};
  copy.tensors["model.rotary_emb.inv_freq"] = {"F32", {4}, std::string(16, 0)};
  EXPECT_TRUE(copy.Open().ok()) << copy.Open().status();
}

// The converter's output for an FLA model: the official names with groups and biases.
TEST(CheckpointTest, OfficialLayoutWithGroupsAndBiases) {
  Copy copy("tiny_fla");
  TensorSpecs renamed;
  for (const auto& [old_name, old_spec] : copy.tensors) {
    std::string name = old_name;
    TensorSpec spec = old_spec;
    for (const auto& [from, to] : {std::pair<std::string, std::string>{".f_proj.", ".fgate_proj."},
                                   {".g_proj.", ".ogate_proj."}}) {
      if (const size_t at = name.find(from); at != std::string::npos)
        name.replace(at, from.size(), to);
    }
    if (name.find(".up_proj.") != std::string::npos) continue;
    if (const size_t at = name.find(".gate_proj."); at != std::string::npos) {
      std::string up = name;
      spec.bytes += copy.tensors.at(up.replace(at, 11, ".up_proj.")).bytes;
      spec.shape[0] *= 2;
    }
    renamed[name] = spec;
  }
  copy.tensors = renamed;
  copy.ReplaceInConfig("\"forgetting_transformer\"", "\"forgetting_transformer-project_fox\"");
  const auto checkpoint = copy.Open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->layers()[0].k_bias.shape, std::vector<int64_t>{32});
  EXPECT_EQ(checkpoint->layers()[0].k_norm.shape, std::vector<int64_t>{32});
}

// One bad value of each type, anywhere.
TEST(CheckpointTest, NonFiniteWeightsAreRefusedByName) {
  std::mt19937_64 random(3);
  const struct {
    const char* dtype;
    size_t width;
    std::string bad;  // little-endian
  } kCases[] = {
      {"BF16", 2, std::string("\x80\x7f", 2)},
      {"BF16", 2, std::string("\xc1\xff", 2)},
      {"F16", 2, std::string("\x00\x7c", 2)},
      {"F16", 2, std::string("\x01\xfc", 2)},
      {"F32", 4, std::string("\x00\x00\x80\xff", 4)},
      {"F32", 4, std::string("\x01\x00\x80\x7f", 4)},
      {"F64", 8, std::string("\x00\x00\x00\x00\x00\x00\xf0\x7f", 8)},
      {"F64", 8, std::string("\x01\x00\x00\x00\x00\x00\xf0\x7f", 8)},
  };
  for (const auto& c : kCases) {
    Copy copy("tiny_rope");
    auto it = copy.tensors.begin();
    std::advance(it, static_cast<int64_t>(random() % copy.tensors.size()));
    auto& [name, spec] = *it;
    SCOPED_TRACE(std::string(c.dtype) + " " + name);
    const size_t count = spec.bytes.size() / 2;
    spec = {c.dtype, spec.shape, std::string(count * c.width, '\0')};
    ASSERT_TRUE(copy.Open().ok());
    spec.bytes.replace(random() % count * c.width, c.width, c.bad);
    ExpectRefused(copy.Open().status(),
                  "tensor \"" + name + "\" holds 1 values that are NaN or infinite");
    EXPECT_TRUE(copy.Open({.allow_nonfinite = true}).ok());
  }
}

// Values on which pruning's bounds depend are checked even if other values need not be finite.
TEST(CheckpointTest, ValuesOfBoundsAreCheckedInAnyCase) {
  const std::string llama = "transformers/llama_kv1_default_tied_forgetting";
  const std::string qwen = "transformers/qwen3_kv1_default_forgetting";
  const struct {
    std::string golden;
    const char* name;
    double value;
    const char* said;  // the error; empty: none
  } kCases[] = {
      {llama, "self_attn.sinks", NAN, "holds nan, not between -3.40282e+38 and 3.40282e+38"},
      {llama, "self_attn.sinks", INFINITY, "holds inf, not between -3.40282e+38"},
      {llama, "self_attn.sinks", -static_cast<double>(INFINITY),
       "holds -inf, not between -3.40282e+38"},
      {llama, "self_attn.sinks", -60, ""},
      {llama, "self_attn.q_cap", NAN, "holds nan, not between 8.67362e-19 and 1.15292e+18"},
      {llama, "self_attn.q_cap", 0, "holds 0, not between 8.67362e-19 and 1.15292e+18"},
      {llama, "self_attn.k_cap", INFINITY, "holds inf, not between 8.67362e-19 and"},
      {llama, "self_attn.k_cap", -1, "holds -1, not between 8.67362e-19 and"},
      {llama, "self_attn.k_cap", 0x0.fffp-60, "holds 8.6715e-19, not between"},
      {llama, "self_attn.k_cap", 0x1.001p60, "holds 1.1532e+18, not between"},
      {llama, "self_attn.k_cap", 0x1p-60, ""},
      {llama, "self_attn.q_cap", 0x1p60, ""},
      {llama, "input_layernorm.weight", 0, ""},
      {llama, "input_layernorm.weight", 1e-20, "holds 1e-20, which pruning's bounds cannot take"},
      {qwen, "self_attn.q_norm.weight", -0x1p-60, ""},
      {qwen, "self_attn.q_norm.weight", -1e-46, "holds -1e-46, which pruning's bounds cannot"},
      {qwen, "self_attn.k_norm.weight", 1e46, "holds 1e+46, which pruning's bounds cannot"},
      {qwen, "self_attn.k_norm.weight", NAN, ""},
      {"transformers/qwen3_kv3_llama3", "self_attn.k_norm.weight", 1e-30, ""},  // never pruned
  };
  for (const auto& c : kCases) {
    Copy copy(c.golden);
    const std::string name = std::string("model.layers.1.") + c.name;
    TensorSpec& spec = copy.tensors.at(name);
    spec = {"F64", spec.shape, std::string(8 * static_cast<size_t>(spec.shape[0]), '\0')};
    const std::vector<double> values(static_cast<size_t>(spec.shape[0]), c.value);
    std::memcpy(spec.bytes.data(), values.data(), spec.bytes.size());
    SCOPED_TRACE(::testing::Message() << name << " " << c.value);
    const auto opened = copy.Open({.allow_nonfinite = true});
    if (*c.said == 0) {
      EXPECT_TRUE(opened.ok()) << opened.status();
    } else {
      ExpectRefused(opened.status(), "tensor \"" + name + "\" " + c.said);
    }
  }
}

TEST(CheckpointTest, TruncationWhileOpening) {
  const Copy copy("tiny_rope");
  ASSERT_TRUE(copy.Open().ok());
  const std::string path = copy.dir.File("model.safetensors");
  const std::string content = FileContent(path);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    std::mt19937_64 random(5);
    while (!stop) {
      fs::resize_file(path, random() % content.size());
      copy.dir.Write("model.safetensors", content);
    }
  });
  for (int i = 0; i < 1000; ++i) {
    const auto checkpoint = Checkpoint::Open(copy.dir.path(), {});
    EXPECT_TRUE(checkpoint.ok() || absl::IsInvalidArgument(checkpoint.status()));
  }
  stop = true;
  writer.join();
}

TEST(CheckpointTest, AnAdapterAloneOrBesideAModel) {
  const Copy copy("tiny_rope");
  copy.dir.Write("adapter_config.json", "{}");
  const std::string said = "adapter_config.json: the model directory has an adapter";
  ExpectRefused(Checkpoint::Open(copy.dir.path(), {}).status(), said);
  ExpectRefused(copy.Open().status(), said);
}

TEST(CheckpointTest, TensorsOfTheClassWithoutAnOutputLayer) {
  for (const char* golden : {"tiny_rope", "transformers/llama_kv1_default_tied_forgetting"}) {
    SCOPED_TRACE(golden);
    Copy copy(golden);
    const TensorSpecs original = std::exchange(copy.tensors, {});
    for (const auto& [name, spec] : original) {
      copy.tensors[name.starts_with("model.") ? name.substr(6) : name] = spec;
    }
    EXPECT_TRUE(copy.Open().ok()) << copy.Open().status();
    copy.tensors["model.norm.weight"] = original.at("model.norm.weight");
    ExpectRefused(copy.Open().status(), "is missing");
  }
}

TEST(CheckpointTest, FilesThatAreNotThere) {
  const TemporaryDir dir;
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::Open(dir.File("absent"), {}).status()));
  const auto says = [&](const std::string& part) {
    SCOPED_TRACE(part);
    ExpectRefused(Checkpoint::Open(dir.path(), {}).status(),
                  "config.json: no such file in the model directory" + part);
  };
  says("");
  fs::create_directories(dir.File("snapshots"));
  says(", but an unfinished download of a Hugging Face cache");
  fs::create_directories(dir.File("snapshots/0ab1"));
  says(", but a repository of a Hugging Face cache: serve its snapshots/0ab1");
  dir.Write("x.gguf", "GGUF");
  says(", but a GGUF file: foxserve serve x.gguf, or ./run serve x.gguf");
  const absl::Status file = Checkpoint::Open(dir.File("x.gguf"), {}).status();
  EXPECT_NE(file.message().find("is a GGUF file: foxserve serve "), std::string::npos) << file;
  dir.Write("config.json", std::string(2 << 20, ' '));
  ExpectRefused(Checkpoint::Open(dir.path(), {}).status(), "config.json: larger than");
}

}  // namespace
}  // namespace fox
