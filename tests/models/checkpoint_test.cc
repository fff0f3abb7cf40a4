// Checkpoint::Open on golden checkpoints that are damaged in one place each. That the tensors have
// their roles: tests/engine/run/model_runner_golden_test.cc.
#include "models/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/safetensors.h"
#include "tests/models/refused.h"
#include "tests/models/safetensors_writer.h"

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
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "\" has dtype I");
      copy.tensors[name] = spec;
      copy.tensors[name + "_copy"] = spec;
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "_copy\" is not part of this model");
      copy.tensors.erase(name + "_copy");
    }
    EXPECT_TRUE(copy.Open().ok());
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

TEST(CheckpointTest, TiedEmbeddings) {
  Copy copy("tiny_norm_no_gate_tied");
  const auto tied = copy.Open();
  ASSERT_TRUE(tied.ok()) << tied.status().ToString();
  EXPECT_EQ(tied->lm_head().data, tied->embeddings().data);

  copy.tensors["lm_head.weight"] = copy.tensors["model.embeddings.weight"];
  const auto repeated = copy.Open();
  ASSERT_TRUE(repeated.ok()) << repeated.status().ToString();
  EXPECT_EQ(repeated->lm_head().data, repeated->embeddings().data);

  copy.tensors["lm_head.weight"].bytes[77] ^= 1;
  ExpectRefused(copy.Open().status(), "lm_head.weight\" differs");
  copy.tensors["lm_head.weight"] = copy.tensors["model.embeddings.weight"];
  copy.tensors["lm_head.weight"].dtype = "F16";
  ExpectRefused(copy.Open().status(), "lm_head.weight\" differs");
  copy.tensors["lm_head.weight"] = {"BF16", {1}, "ab"};
  ExpectRefused(copy.Open().status(), "lm_head.weight\" has shape");
}

// transformers saved RoPE's frequencies once, and recomputes them.
TEST(CheckpointTest, FrequenciesThatTransformersIgnores) {
  Copy copy("transformers/llama_kv3_default");
  TensorSpec& stored = copy.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"];
  stored = {"F32", {8}, std::string(32, '\0')};
  EXPECT_TRUE(copy.Open().ok());
  stored = {"F32", {4}, std::string(16, '\0')};
  ExpectRefused(copy.Open().status(), "inv_freq\" has shape [4], the configuration needs [8]");
}

// FLA of 2025-04-08 stored the forget gate as g_proj.
TEST(CheckpointTest, ForgetGateUnderItsHistoricalName) {
  Copy copy("tiny_fla_plain");
  for (const char* part : {"weight", "bias"}) {
    for (const char* layer : {"model.layers.0.attn.", "model.layers.1.attn."}) {
      auto node = copy.tensors.extract(std::string(layer) + "f_proj." + part);
      node.key() = std::string(layer) + "g_proj." + part;
      copy.tensors.insert(std::move(node));
    }
  }
  const auto checkpoint = copy.Open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->layers()[0].fgate_proj.shape, (std::vector<int64_t>{2, 64}));
  EXPECT_TRUE(checkpoint->layers()[0].ogate_proj.empty());

  // With an output gate the name cannot serve both.
  copy.ReplaceInConfig("\"use_output_gate\": false", "\"use_output_gate\": true");
  ExpectRefused(copy.Open().status(), "g_proj.weight\" has shape [2, 64]");
}

// What the converter writes for an FLA model: the official names with groups and biases.
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

// F4: one bad value of each type, anywhere.
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

// Whatever else may be not finite: bounds stand on them.
TEST(CheckpointTest, SinksAndCapsAreNumbersThatBound) {
  const struct {
    const char* name;
    float value;
    const char* said;  // empty: nothing
  } kCases[] = {
      {"sinks", NAN, "holds nan, not between -3.40282e+38 and 3.40282e+38"},
      {"sinks", INFINITY, "holds inf, not between -3.40282e+38 and 3.40282e+38"},
      {"sinks", -INFINITY, "holds -inf, not between -3.40282e+38 and 3.40282e+38"},
      {"sinks", -60, ""},
      {"q_cap", NAN, "holds nan, not between 7.88861e-31 and"},
      {"q_cap", 0, "holds 0, not between 7.88861e-31 and"},
      {"k_cap", INFINITY, "holds inf, not between 7.88861e-31 and"},
      {"k_cap", -1, "holds -1, not between 7.88861e-31 and"},
      {"k_cap", 7e-31F, "holds 7e-31, not between 7.88861e-31 and"},
      {"k_cap", 1e-30F, ""},
  };
  for (const auto& c : kCases) {
    Copy copy("transformers/llama_kv1_default_tied_forgetting");
    const std::string name = std::string("model.layers.1.self_attn.") + c.name;
    std::memcpy(copy.tensors.at(name).bytes.data(), &c.value, sizeof c.value);
    SCOPED_TRACE(name);
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

TEST(CheckpointTest, FilesThatAreNotThere) {
  const TemporaryDir dir;
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::Open(dir.File("absent"), {}).status()));
  ExpectRefused(Checkpoint::Open(dir.path(), {}).status(), "config.json: no such file");
  dir.Write("config.json", std::string(2 << 20, ' '));
  ExpectRefused(Checkpoint::Open(dir.path(), {}).status(), "config.json: larger than");
}

}  // namespace
}  // namespace fox
