// LoadTokenizer: which files it picks, and what it refuses, from single faults to random damage.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <random>

#include "models/tokenizer/token_stream.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer/small_vocabulary.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

using nlohmann::json;

constexpr int64_t kVocab = 1000;

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadPair(const std::string& vocab,
                                                    const std::string& merges,
                                                    int64_t vocab_size = kVocab) {
  TestDir dir;
  dir.Write("vocab.json", vocab).Write("merges.txt", merges);
  return LoadTokenizer(dir.path(), vocab_size);
}

// By an error that opens with the name of the file at fault.
void ExpectNotLoaded(const std::string& vocab, const std::string& merges,
                     int64_t vocab_size = kVocab, const std::string& file = "vocab.json") {
  const auto tokenizer = LoadPair(vocab, merges, vocab_size);
  ASSERT_FALSE(tokenizer.ok()) << merges.substr(0, 80);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(tokenizer.status().message());
  EXPECT_TRUE(message.starts_with(file + ": ")) << message;
  EXPECT_LE(message.size(), 1024u);
  EXPECT_TRUE(IsValidUtf8(message));
}

void ExpectMergesRefused(const std::string& vocab, const std::string& merges) {
  ExpectNotLoaded(vocab, merges, kVocab, "merges.txt");
}

void UseIfLoaded(const absl::StatusOr<std::unique_ptr<Tokenizer>>& tokenizer) {
  if (!tokenizer.ok()) {
    const absl::StatusCode code = tokenizer.status().code();
    EXPECT_TRUE(code == absl::StatusCode::kInvalidArgument ||
                code == absl::StatusCode::kUnimplemented);
    return;
  }
  for (const std::string text : {"abcab <|endoftext|> \xC3\xA9\n", ""}) {
    const auto ids = (*tokenizer)->Encode(text, true);
    ASSERT_TRUE(ids.ok());
    for (const int32_t id : *ids) ASSERT_LT(id, (*tokenizer)->info().vocab_size);
    EXPECT_TRUE(IsValidUtf8(Detokenize(**tokenizer, *ids, false)));
  }
}

TEST(LoadTokenizerTest, PicksByFiles) {
  TestDir dir;
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
  dir.Write("tokenizer.json", RepositoryFile("tests/models/tokenizer/small_tokenizer.json"))
      .Write("tokenizer_config.json", "{}");
  EXPECT_GT(MustLoad(dir.path(), kVocab)->info().vocab_size, 400);
  dir.Write("tokenizer.model", RepositoryFile("models/demo/tokenizer.model"));
  EXPECT_EQ(MustLoad(dir.path(), kDemoVocab)->info().kind, "sentencepiece");
  EXPECT_FALSE(LoadTokenizer(dir.path(), kDemoVocab - 1).ok());
}

TEST(LoadTokenizerTest, RefusesFilesThatAreNone) {
  TestDir outside, dir;
  outside.Write("tokenizer.model", RepositoryFile("models/demo/tokenizer.model"));
  std::filesystem::create_symlink(outside / "tokenizer.model", dir / "tokenizer.model");
  const auto link = LoadTokenizer(dir.path(), kDemoVocab);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(link.status().message()).find(outside.path()), std::string::npos);

  std::filesystem::remove(dir / "tokenizer.model");
  ASSERT_EQ(::mkfifo((dir / "tokenizer.model").c_str(), 0600), 0);
  EXPECT_EQ(LoadTokenizer(dir.path(), kDemoVocab).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LoadTokenizerTest, SpecialTokensOfGpt2Files) {
  TestDir dir;
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

  dir.Write("special_tokens_map.json", R"({"bos_token": "<absent>"})");
  const absl::Status absent = LoadTokenizer(dir.path(), kVocab).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(absent.message()).find("special_tokens_map.json: bos_token"), 0u) << absent;
}

TEST(LoadTokenizerTest, FaultsOfVocabulary) {
  const json good = SmallVocab();
  EXPECT_TRUE(LoadPair(good.dump(), kSmallMerges).ok());
  EXPECT_TRUE(LoadPair(good.dump(), kSmallMerges, 259).ok());
  ExpectNotLoaded(good.dump(), kSmallMerges, 258);  // beyond the model
  json vocab = good;
  vocab["abc"] = 256;  // twice
  ExpectNotLoaded(vocab.dump(), kSmallMerges);
  vocab = good;
  vocab["<|endoftext|>"] = 300;  // a gap
  ExpectNotLoaded(vocab.dump(), kSmallMerges);
  vocab = good;
  vocab.erase("!");  // a byte is missing
  vocab["other"] = 0;
  ExpectNotLoaded(vocab.dump(), kSmallMerges);
  for (const json& id : {json(-1), json(1.5), json("1"), json(nullptr), json::array(),
                         json::object(), json(5000000000)}) {
    vocab = good;
    vocab["abc"] = id;
    ExpectNotLoaded(vocab.dump(), kSmallMerges);
  }
  std::string text = good.dump();
  text.insert(text.size() - 1, ",\"ab\":256");  // the same key again
  ExpectNotLoaded(text, kSmallMerges);
  text = good.dump();
  text.replace(text.find("\"abc\""), 5,
               "\"a\xFF"
               "c\"");
  ExpectNotLoaded(text, kSmallMerges);
  ExpectNotLoaded(good.dump() + std::string("\0garbage", 8), kSmallMerges);
  for (const char* other : {"", "[]", "1", "{", "null", "{} {}"})
    ExpectNotLoaded(other, kSmallMerges);
  ExpectNotLoaded(std::string(100'000, '['), kSmallMerges);
}

TEST(LoadTokenizerTest, FaultsOfMerges) {
  const std::string vocab = SmallVocab().dump();
  ExpectMergesRefused(vocab, "x y\n");  // unknown product
  ExpectMergesRefused(vocab, "a unknown\n");
  ExpectMergesRefused(vocab, "a b c\n");
  ExpectMergesRefused(vocab, "ab\n");
  ExpectMergesRefused(vocab, "a \n");
  ExpectMergesRefused(vocab, " b\n");
  ExpectMergesRefused(vocab, "a b\n\nab c\n");
  ExpectMergesRefused(vocab, "a \xFF\n");
  std::string many = "a b\n";
  while (many.size() < size_t{4} * 10'000'001) many += many.substr(0, 40'000'004 - many.size());
  ExpectMergesRefused(vocab, many);
  EXPECT_TRUE(LoadPair(vocab, "a b\r\nab c").ok());  // other line ends
  EXPECT_TRUE(LoadPair(vocab, "").ok());
}

TEST(LoadTokenizerTest, DamagedFilesNeverCrash) {
  const std::string vocab = SmallVocab().dump();
  for (size_t n = 0; n < vocab.size(); n += 11)
    UseIfLoaded(LoadPair(vocab.substr(0, n), kSmallMerges));
  const std::string whole = RepositoryFile("tests/models/tokenizer/small_tokenizer.json");
  std::mt19937 rng(17);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = round % 2 == 0 ? whole : vocab;
    for (unsigned i = 0; i < 1 + rng() % 3; ++i) {
      damaged[rng() % damaged.size()] = static_cast<char>(32 + rng() % 95);
    }
    if (round % 5 == 0) damaged.resize(rng() % damaged.size());
    TestDir dir;
    dir.Write(round % 2 == 0 ? "tokenizer.json" : "vocab.json", damaged)
        .Write("merges.txt", kSmallMerges);
    UseIfLoaded(LoadTokenizer(dir.path(), kVocab));
  }
}

}  // namespace
}  // namespace fox
