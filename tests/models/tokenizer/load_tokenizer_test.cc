// LoadTokenizer: which files it picks, and where special tokens come from. Errors inside of a file
// are tested with its parser and by tests/fuzz.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/tokenizer/token_stream.h"
#include "tests/models/refused.h"
#include "tests/models/tokenizer/small_vocabulary.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

using nlohmann::json;

constexpr int64_t kVocab = 1000;

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadPair(const std::string& vocab,
                                                    const std::string& merges,
                                                    int64_t vocab_size = kVocab) {
  TemporaryDir dir;
  dir.Write("vocab.json", vocab).Write("merges.txt", merges);
  return LoadTokenizer(dir.path(), vocab_size);
}

TEST(LoadTokenizerTest, PicksByFiles) {
  TemporaryDir dir;
  auto none = LoadTokenizer(dir.path(), kVocab);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
  EXPECT_EQ(LoadTokenizer(dir.path() + "/absent", kVocab).status().code(),
            absl::StatusCode::kNotFound);

  dir.Write("vocab.json", SmallVocab().dump());
  EXPECT_FALSE(LoadTokenizer(dir.path(), kVocab).ok());  // needs merges.txt
  dir.Write("merges.txt", kSmallMerges);
  EXPECT_EQ(MustLoad(dir.path(), kVocab)->info().vocab_size, 259);
  dir.Write("tokenizer_config.json", R"({"tokenizer_class": "JSONGPT2Tokenizer"})");
  EXPECT_EQ(MustLoad(dir.path(), kVocab)->info().kind, "longcrawl64");
  dir.Write("tokenizer.model", RepositoryFile("models/demo/tokenizer.model"));
  EXPECT_EQ(MustLoad(dir.path(), kDemoVocab)->info().kind, "sentencepiece");
  EXPECT_FALSE(LoadTokenizer(dir.path(), kDemoVocab - 1).ok());
  json of_bytes = json::parse(RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
  dir.Write("tokenizer.json", of_bytes.dump()).Write("tokenizer_config.json", "{}");
  EXPECT_EQ(MustLoad(dir.path(), kVocab)->info().kind, "byte_level_bpe");
  of_bytes["model"]["type"] = "Unigram";  // only the sentencepiece library reads this type
  dir.Write("tokenizer.json", of_bytes.dump());
  EXPECT_EQ(MustLoad(dir.path(), kDemoVocab)->info().kind, "sentencepiece");
  std::filesystem::remove(dir.File("tokenizer.model"));
  ExpectRefused(LoadTokenizer(dir.path(), kVocab).status(), "model \"Unigram\" is not supported");
}

TEST(LoadTokenizerTest, RefusesFilesThatAreNone) {
  TemporaryDir outside, dir;
  outside.Write("tokenizer.model", RepositoryFile("models/demo/tokenizer.model"));
  std::filesystem::create_symlink(outside.File("tokenizer.model"), dir.File("tokenizer.model"));
  const auto link = LoadTokenizer(dir.path(), kDemoVocab);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(link.status().message()).find(outside.path()), std::string::npos);

  std::filesystem::remove(dir.File("tokenizer.model"));
  ASSERT_EQ(::mkfifo(dir.File("tokenizer.model").c_str(), 0600), 0);
  EXPECT_EQ(LoadTokenizer(dir.path(), kDemoVocab).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LoadTokenizerTest, SpecialTokensOfGpt2Files) {
  TemporaryDir dir;
  json vocab = SmallVocab();
  dir.Write("vocab.json", vocab.dump()).Write("merges.txt", kSmallMerges);
  const auto plain = MustLoad(dir.path(), kVocab);
  EXPECT_EQ(plain->info().bos_id, 258);
  EXPECT_EQ(*plain->Encode("abc", true), (std::vector<int32_t>{257}));
  EXPECT_EQ(plain->TokenBytes(258, true), "");
  EXPECT_EQ(plain->TokenBytes(258, false), "<|endoftext|>");
  EXPECT_EQ(plain->TokenBytes(900, false), "");  // a model's padding
  EXPECT_EQ(plain->TokenBytes(-1, false), "");

  dir.Write("tokenizer_config.json", R"({"add_bos_token": true, "added_tokens_decoder": {"259":
      {"content": "<x>", "special": true}, "260": {"content": "<y>"}}})")
      .Write("special_tokens_map.json", R"({"bos_token": {"content": "<x>"}, "eos_token": null})");
  const auto named = MustLoad(dir.path(), kVocab);
  EXPECT_EQ(named->info().bos_id, 259);
  EXPECT_EQ(named->info().eos_id, std::nullopt);
  EXPECT_EQ(*named->Encode("ab<x>c<y>", true), (std::vector<int32_t>{259, 256, 259, 'c', 260}));
  EXPECT_EQ(Detokenize(*named, {259, 256, 260}, true), "ab<y>");

  // A token without an id in the files gets the next id, if the model has an embedding for it.
  dir.Write("tokenizer_config.json", R"({"bos_token": "<next>"})");
  std::filesystem::remove(dir.File("special_tokens_map.json"));
  EXPECT_EQ(MustLoad(dir.path(), 260)->info().bos_id, 259);
  EXPECT_EQ(MustLoad(dir.path(), 259)->info().bos_id, std::nullopt);
  EXPECT_EQ(MustLoad(dir.path(), 259)->Encode("<next>", false)->size(), 6u);
}

TEST(LoadTokenizerTest, TheClassOfGpt2FilesMayBeTheModels) {
  TemporaryDir dir;
  dir.Write("vocab.json", SmallVocab().dump()).Write("merges.txt", kSmallMerges);

  EXPECT_EQ(MustLoad(dir.path(), kVocab)->info().bos_id, 258);
  dir.Write("config.json", R"({"model_type": "qwen3"})");
  EXPECT_EQ(MustLoad(dir.path(), kVocab)->info().bos_id, std::nullopt);
}

TEST(LoadTokenizerTest, RefusesMoreThanTheModelOrMemoryHas) {
  const std::string vocab = SmallVocab().dump();
  EXPECT_TRUE(LoadPair(vocab, kSmallMerges, 259).ok());
  ExpectRefused(LoadPair(vocab, kSmallMerges, 258).status(), "vocab.json: ");
  std::string many = "a b\n";
  while (many.size() < size_t{4} * 10'000'001) many += many.substr(0, 40'000'004 - many.size());
  ExpectRefused(LoadPair(vocab, many).status(), "merges.txt: ");
}

}  // namespace
}  // namespace fox
