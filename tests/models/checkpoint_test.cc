// Checkpoint::Open on every variant of the architecture, and on the same directories damaged in one
// place each.
#include "models/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
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

constexpr char kLayer[] = "model.layers.1.";

TEST(CheckpointTest, OpensEveryGoldenVariant) {
  int opened = 0;
  for (const auto& entry : fs::directory_iterator(Golden(""))) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    const auto checkpoint = Checkpoint::Open(entry.path().string(), {});
    ASSERT_TRUE(checkpoint.ok()) << entry.path() << ": " << checkpoint.status().ToString();
    EXPECT_EQ(checkpoint->layers().size(), static_cast<size_t>(checkpoint->config().num_layers));
    EXPECT_TRUE(checkpoint->CheckUnchanged().ok());
    ++opened;
  }
  EXPECT_EQ(opened, 13);
}

TEST(CheckpointTest, OpensTheShardedDemoModel) {
  const auto checkpoint = Checkpoint::Open(std::string(FOX_SOURCE_DIR) + "/models/demo", {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->layers().size(), 10u);
  const LayerTensors& layer = checkpoint->layers()[9];
  EXPECT_EQ(layer.k_shift_proj.shape, (std::vector<int64_t>{6, 384}));
  EXPECT_EQ(layer.gate_up.size(), 1u);
  EXPECT_EQ(layer.gate_up[0].shape, (std::vector<int64_t>{2048, 384}));
}

TEST(CheckpointTest, RolesPointAtTheRightBytes) {
  const Copy copy("tiny_fla");
  const auto checkpoint = copy.Open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const auto expect = [&](const HostTensor& tensor, const std::string& name) {
    const TensorSpec& spec = copy.tensors.at(name);
    ASSERT_EQ(tensor.shape, spec.shape) << name;
    EXPECT_EQ(std::memcmp(tensor.data, spec.bytes.data(), spec.bytes.size()), 0) << name;
  };
  const LayerTensors& layer = checkpoint->layers()[1];
  const std::string attn = std::string(kLayer) + "attn.";
  expect(checkpoint->embeddings(), "model.embeddings.weight");
  expect(checkpoint->final_norm(), "model.norm.weight");
  expect(checkpoint->lm_head(), "lm_head.weight");
  expect(layer.attn_norm, std::string(kLayer) + "attn_norm.weight");
  expect(layer.mlp_norm, std::string(kLayer) + "mlp_norm.weight");
  expect(layer.q_proj, attn + "q_proj.weight");
  expect(layer.k_proj, attn + "k_proj.weight");
  expect(layer.v_proj, attn + "v_proj.weight");
  expect(layer.q_bias, attn + "q_proj.bias");
  expect(layer.k_bias, attn + "k_proj.bias");
  expect(layer.v_bias, attn + "v_proj.bias");
  expect(layer.q_norm, attn + "q_norm.weight");
  expect(layer.k_norm, attn + "k_norm.weight");
  expect(layer.o_proj, attn + "o_proj.weight");
  expect(layer.fgate_proj, attn + "f_proj.weight");
  expect(layer.fgate_bias, attn + "f_proj.bias");
  expect(layer.ogate_proj, attn + "g_proj.weight");
  ASSERT_EQ(layer.gate_up.size(), 2u);
  expect(layer.gate_up[0], std::string(kLayer) + "mlp.gate_proj.weight");
  expect(layer.gate_up[1], std::string(kLayer) + "mlp.up_proj.weight");
  expect(layer.down_proj, std::string(kLayer) + "mlp.down_proj.weight");
  EXPECT_TRUE(layer.output_norm.empty() && layer.k_shift_proj.empty());
}

// Each tensor of each variant in turn: absent, of another shape, of an integer type, or doubled
// under an unknown name.
TEST(CheckpointTest, EveryTensorIsRequiredWithItsShapeAndType) {
  for (const char* golden :
       {"tiny_rope", "tiny_fla", "tiny_bias_only", "tiny_fixed_k_shift_only"}) {
    Copy copy(golden);
    const TensorSpecs original = copy.tensors;
    for (const auto& [name, spec] : original) {
      SCOPED_TRACE(std::string(golden) + " " + name);
      copy.tensors.erase(name);
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "\" is missing");
      copy.tensors[name] = {
          spec.dtype, {static_cast<int64_t>(spec.bytes.size() / 2), 1}, spec.bytes};
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "\" has shape [");
      copy.tensors[name] = {"I16", spec.shape, spec.bytes};
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "\" has dtype I16");
      copy.tensors[name] = spec;
      copy.tensors[name + "_copy"] = spec;
      ExpectRefused(copy.Open().status(), "tensor \"" + name + "_copy\" is not part of this model");
      copy.tensors.erase(name + "_copy");
    }
    EXPECT_TRUE(copy.Open().ok());
  }
}

TEST(CheckpointTest, LeftoversOfOtherModels) {
  const std::string two(2, '\0');
  for (const char* name : {"model.layers.0.attn.rotary.inv_freq", "model.layers.2.attn_norm.weight",
                           "model.res_norm.weight", "model.layers.0.attn.q_proj.bias",
                           "model.layers.00.attn_norm.weight", "", "lm_head.bias"}) {
    Copy copy("tiny_rope");
    copy.tensors[name] = {"BF16", {1}, two};
    ExpectRefused(copy.Open().status(), "tensor \"" + std::string(name) + "\" is not part");
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

// Makes a tiny_fla_plain into a whole model of about 4 KB.
void MakeSmall(Copy& copy) {
  copy.config = R"({"model_type": "forgetting_transformer", "vocab_size": 8, "hidden_size": 8,
                    "num_hidden_layers": 1, "num_heads": 2, "intermediate_size": 8})";
  for (auto it = copy.tensors.begin(); it != copy.tensors.end();) {
    auto& [name, spec] = *it;
    size_t bytes = 2;
    for (int64_t& extent : spec.shape) {
      extent = std::min<int64_t>(extent, 8);
      bytes *= static_cast<size_t>(extent);
    }
    spec.bytes.resize(bytes);
    it = name.starts_with(kLayer) ? copy.tensors.erase(it) : std::next(it);
  }
}

TEST(CheckpointTest, TruncationAtEveryByte) {
  Copy copy("tiny_fla_plain");
  MakeSmall(copy);
  const auto whole = copy.Open();
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  const std::string path = copy.dir.File("model.safetensors");
  const size_t full = fs::file_size(path);
  ASSERT_GT(full, 2000u);
  for (size_t size = full; size-- > 0;) {
    fs::resize_file(path, size);
    const auto checkpoint = Checkpoint::Open(copy.dir.path(), {});
    ASSERT_FALSE(checkpoint.ok()) << size;
    ASSERT_TRUE(absl::IsInvalidArgument(checkpoint.status())) << checkpoint.status().ToString();
  }
  ExpectRefused(whole->CheckUnchanged(), "model.safetensors: changed");
}

TEST(CheckpointTest, TruncationAfterOpenIsNoCrash) {
  const Copy copy("tiny_rope");
  const auto checkpoint = copy.Open();
  ASSERT_TRUE(checkpoint.ok());
  fs::resize_file(copy.dir.File("model.safetensors"), 100);
  std::vector<float> values(static_cast<size_t>(checkpoint->embeddings().size()));
  ReadElements(checkpoint->embeddings(), 0, checkpoint->embeddings().size(), values.data());
  ExpectRefused(checkpoint->CheckUnchanged(), "model.safetensors: changed while it was being read");
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
  const auto open = [&] { return Checkpoint::Open(dir.path(), {}).status(); };
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::Open(dir.File("absent"), {}).status()));
  ExpectRefused(open(), "config.json: no such file");
  dir.Write("config.json", std::string(2 << 20, ' '));
  ExpectRefused(open(), "config.json: larger than");
  dir.Write("config.json", FileContent(Golden("tiny_rope") + "/config.json"));
  ExpectRefused(open(), "neither model.safetensors");
  dir.Write("pytorch_model.bin", "");
  ExpectRefused(open(), "run ./run convert");
  fs::create_symlink(Golden("tiny_rope") + "/model.safetensors", dir.File("model.safetensors"));
  ExpectRefused(open(), "symbolic link that leaves");
  fs::remove(dir.File("model.safetensors"));
  fs::create_directory(dir.File("model.safetensors"));
  ExpectRefused(open(), "not a regular file");
}

}  // namespace
}  // namespace fox
