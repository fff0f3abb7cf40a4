// Tokenizers of model directories as on the hub, against the results of transformers that
// make_hub_vectors.py wrote. Real vocabularies: hub_tokenizer_test.py, at night.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer/token_stream.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

using Ids = std::vector<int32_t>;

TEST(HubTokenizerTest, DirectoriesAreReadAsTransformersReadsThem) {
  const auto cases =
      nlohmann::json::parse(RepositoryFile("tests/models/tokenizer/hub_vectors.json"));
  ASSERT_FALSE(cases.empty());
  for (const auto& [name, expected] : cases.items()) {
    SCOPED_TRACE(name);
    TemporaryDir dir;
    for (const std::string path : expected["base"]) {
      const bool json = path.ends_with("tokenizer.json");
      dir.Write(json ? "tokenizer.json" : std::filesystem::path(path).filename().string(),
                RepositoryFile(path));
    }
    for (const auto& [file, content] : expected["files"].items()) dir.Write(file, content.dump());
    const auto tokenizer = MustLoad(dir.path(), expected["size"]);
    EXPECT_EQ(tokenizer->info().vocab_size, expected["size"]);
    EXPECT_EQ(tokenizer->info().eos_id, expected["eos"].get<int32_t>());
    EXPECT_EQ(*tokenizer->Encode("a", true), expected["around"].get<Ids>());
    for (const auto& row : expected["encode"]) {
      EXPECT_EQ(*tokenizer->Encode(row[0], false), row[1].get<Ids>()) << row.dump();
    }
    for (const auto& row : expected["decode"]) {
      const Ids ids = row[0];
      EXPECT_EQ(Detokenize(*tokenizer, ids, true), row[1].get<std::string>()) << row.dump();
      EXPECT_EQ(Detokenize(*tokenizer, ids, false), row[2].get<std::string>()) << row.dump();
    }
  }
}

}  // namespace
}  // namespace fox
