// TensorFiles: one file or shards, and an index that agrees with them tensor by tensor.
#include "models/checkpoint/tensor_files.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "tests/models/checkpoint/safetensors_writer.h"
#include "tests/models/refused.h"

namespace fox {
namespace {

constexpr char kIndex[] = "model.safetensors.index.json";

absl::StatusOr<TensorFiles> OpenDir(const TemporaryDir& dir) {
  return TensorFiles::Open(*ModelDir::Open(dir.path()));
}

// Four tensors in two shards.
struct Shards {
  Shards() {
    for (const std::string name : {"embed", "layer.0", "layer.1", "norm"}) {
      const int shard = name.starts_with("layer") ? 1 : 0;
      tensors[shard][name] = {"F32", {1}, name.substr(0, 4)};
      weight_map[name] = shard == 1 ? "b.safetensors" : "a.safetensors";
    }
  }
  absl::StatusOr<TensorFiles> Open() const {
    dir.Write("a.safetensors", SafetensorsBytes(tensors[0]));
    dir.Write("b.safetensors", SafetensorsBytes(tensors[1]));
    std::string index = R"({"metadata": {"total_size": 1}, "weight_map": {)";
    for (const auto& [name, shard] : weight_map) {
      if (index.back() != '{') index += ",";
      index += "\"" + name + "\":\"" + shard + "\"";
    }
    dir.Write(kIndex, index + "}}");
    return OpenDir(dir);
  }

  TensorSpecs tensors[2];
  std::map<std::string, std::string> weight_map;
  TemporaryDir dir;
};

std::string BytesOf(const TensorFiles& files, const std::string& name) {
  const auto& data = files.tensors().at(name).data;
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

TEST(TensorFilesTest, JoinsTheShards) {
  const Shards shards;
  const auto files = shards.Open();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->tensors().size(), 4u);
  EXPECT_EQ(BytesOf(*files, "norm"), "norm");
  EXPECT_EQ(BytesOf(*files, "layer.1"), "laye");
  EXPECT_TRUE(files->CheckUnchanged().ok());
  shards.dir.Write("b.safetensors", "other");
  ExpectRefused(files->CheckUnchanged(), "b.safetensors: changed");
}

TEST(TensorFilesTest, TheSingleFileWinsOverAnyIndex) {
  const Shards shards;
  ASSERT_TRUE(shards.Open().ok());
  shards.dir.Write(kIndex, "no index at all");
  ASSERT_FALSE(OpenDir(shards.dir).ok());
  shards.dir.Write("model.safetensors", SafetensorsBytes(shards.tensors[0]));
  const auto files = OpenDir(shards.dir);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->tensors().size(), 2u);
}

// As in transformers, which takes only the names of files from an index.
TEST(TensorFilesTest, TheIndexIsAListOfFiles) {
  const std::pair<std::function<void(Shards&)>, size_t> kCases[] = {
      {[](Shards& s) { s.weight_map["norm"] = "b.safetensors"; }, 4},
      {[](Shards& s) { s.weight_map["x"] = "b.safetensors"; }, 4},
      {[](Shards& s) { s.weight_map.erase("norm"); }, 4},
      {[](Shards& s) { s.tensors[0].erase("norm"); }, 3},
      {[](Shards& s) { s.tensors[1]["norm"] = s.tensors[0]["norm"]; }, 4},
      {[](Shards& s) { s.tensors[1]["x"] = s.tensors[0]["norm"]; }, 5},
  };
  for (size_t i = 0; i < std::size(kCases); ++i) {
    SCOPED_TRACE(i);
    Shards shards;
    kCases[i].first(shards);
    const auto files = shards.Open();
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->tensors().size(), kCases[i].second);
  }
}

TEST(TensorFilesTest, ShardsThatAreRefused) {
  const std::string unopened = std::string(kIndex) + ": the shard of \"norm\" cannot be opened: ";
  const std::pair<std::function<void(Shards&)>, std::string> kCases[] = {
      {[](Shards& s) { s.weight_map["norm"] = "c.safetensors"; },
       unopened + "c.safetensors: no such file"},
      {[](Shards& s) { s.weight_map["norm"] = "../a.safetensors"; },
       unopened + "a file name leaves the model directory"},
      {[](Shards& s) { s.weight_map["norm"] = "."; }, unopened + ".: is not a regular file"},
      {[](Shards& s) { s.weight_map["norm"] = "model.safetensors.index.json"; },
       std::string(kIndex) + ": header"},
      {[](Shards& s) {
         s.tensors[1]["norm"] = {"F32", {1}, "marn"};
       },
       "shard b.safetensors holds another \"norm\" than an earlier shard"},
      {[](Shards& s) {
         s.tensors[1]["norm"] = {"I32", {1}, "norm"};
       },
       "holds another \"norm\""},
  };
  for (const auto& [damage, part] : kCases) {
    SCOPED_TRACE(part);
    Shards shards;
    damage(shards);
    ExpectRefused(shards.Open().status(), part);
  }
}

TEST(TensorFilesTest, MalformedIndex) {
  const Shards shards;
  ASSERT_TRUE(shards.Open().ok());
  const std::pair<std::string, const char*> kCases[] = {
      {"", "not valid JSON"},
      {"[]", "object weight_map"},
      {"{}", "object weight_map"},
      {R"({"weight_map": []})", "object weight_map"},
      {R"({"weight_map": {"a": 1}})", "\"a\" must name a file"},
      {R"({"weight_map": {"a": "a\u0000.safetensors"}})", "shard of \"a\" cannot be opened"},
  };
  for (const auto& [index, part] : kCases) {
    SCOPED_TRACE(index);
    shards.dir.Write(kIndex, index);
    ExpectRefused(OpenDir(shards.dir).status(), part);
    ExpectRefused(OpenDir(shards.dir).status(), kIndex);
  }
}

TEST(TensorFilesTest, NoWeightsAtAll) {
  const TemporaryDir dir;
  ExpectRefused(OpenDir(dir).status(), "neither model.safetensors nor");
  EXPECT_TRUE(absl::IsNotFound(OpenDir(dir).status()));
  dir.Write("pytorch_model.bin", "");
  ExpectRefused(OpenDir(dir).status(), "there is pytorch_model.bin: foxserve convert THIS DIR");
}

}  // namespace
}  // namespace fox
