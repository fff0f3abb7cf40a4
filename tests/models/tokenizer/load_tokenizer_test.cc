// LoadTokenizer: which files it picks, and what it refuses, from single faults to random damage.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <random>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/token_stream.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

using nlohmann::json;

constexpr int64_t kVocab = 1000;

// 256 bytes, "ab", "abc", and <|endoftext|> as id 258.
json SmallVocab() {
  json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[CharacterOfByte(static_cast<uint8_t>(byte))] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["<|endoftext|>"] = 258;
  return vocab;
}

constexpr char kMerges[] = "#version: 0.2\na b\nab c\n";

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadPair(const std::string& vocab,
                                                    const std::string& merges,
                                                    int64_t vocab_size = kVocab) {
  TestDir dir;
  dir.Write("vocab.json", vocab).Write("merges.txt", merges);
  return LoadTokenizer(dir.path(), vocab_size);
}

void ExpectRefused(const std::string& vocab, const std::string& merges,
                   int64_t vocab_size = kVocab) {
  const auto tokenizer = LoadPair(vocab, merges, vocab_size);
  ASSERT_FALSE(tokenizer.ok()) << merges.substr(0, 80);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LE(tokenizer.status().message().size(), 1024u);
  EXPECT_TRUE(IsValidUtf8(std::string(tokenizer.status().message())));
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

TEST(LoadTokenizer, PicksByFiles) {
  TestDir dir;
  auto none = LoadTokenizer(dir.path(), kVocab);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
  EXPECT_EQ(LoadTokenizer(dir.path() + "/absent", kVocab).status().code(),
            absl::StatusCode::kNotFound);

  dir.Write("vocab.json", SmallVocab().dump());
  EXPECT_FALSE(LoadTokenizer(dir.path(), kVocab).ok());  // needs merges.txt
  dir.Write("merges.txt", kMerges);
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

TEST(LoadTokenizer, RefusesFilesThatAreNone) {
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

TEST(LoadTokenizer, SpecialTokensOfGpt2Files) {
  TestDir dir;
  json vocab = SmallVocab();
  dir.Write("vocab.json", vocab.dump()).Write("merges.txt", kMerges);
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
  EXPECT_EQ(LoadTokenizer(dir.path(), kVocab).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LoadTokenizer, FaultsOfVocabulary) {
  const json good = SmallVocab();
  EXPECT_TRUE(LoadPair(good.dump(), kMerges).ok());
  EXPECT_TRUE(LoadPair(good.dump(), kMerges, 259).ok());
  ExpectRefused(good.dump(), kMerges, 258);  // beyond the model
  json vocab = good;
  vocab["abc"] = 256;  // twice
  ExpectRefused(vocab.dump(), kMerges);
  vocab = good;
  vocab["<|endoftext|>"] = 300;  // a gap
  ExpectRefused(vocab.dump(), kMerges);
  vocab = good;
  vocab.erase("!");  // a byte is missing
  vocab["other"] = 0;
  ExpectRefused(vocab.dump(), kMerges);
  for (const json& id : {json(-1), json(1.5), json("1"), json(nullptr), json::array(),
                         json::object(), json(5000000000)}) {
    vocab = good;
    vocab["abc"] = id;
    ExpectRefused(vocab.dump(), kMerges);
  }
  std::string text = good.dump();
  text.insert(text.size() - 1, ",\"ab\":256");  // the same key again
  ExpectRefused(text, kMerges);
  text = good.dump();
  text.replace(text.find("\"abc\""), 5,
               "\"a\xFF"
               "c\"");
  ExpectRefused(text, kMerges);
  for (const char* other : {"", "[]", "1", "{", "null", "{} {}"}) ExpectRefused(other, kMerges);
  ExpectRefused(std::string(100'000, '['), kMerges);
}

TEST(LoadTokenizer, FaultsOfMerges) {
  const std::string vocab = SmallVocab().dump();
  ExpectRefused(vocab, "x y\n");  // unknown product
  ExpectRefused(vocab, "a unknown\n");
  ExpectRefused(vocab, "a b c\n");
  ExpectRefused(vocab, "ab\n");
  ExpectRefused(vocab, "a \n");
  ExpectRefused(vocab, " b\n");
  ExpectRefused(vocab, "a b\n\nab c\n");
  ExpectRefused(vocab, "a \xFF\n");
  std::string many = "a b\n";
  while (many.size() < size_t{4} * 10'000'001) many += many.substr(0, 40'000'004 - many.size());
  ExpectRefused(vocab, many);
  EXPECT_TRUE(LoadPair(vocab, "a b\r\nab c").ok());  // other line ends
  EXPECT_TRUE(LoadPair(vocab, "").ok());
}

TEST(LoadTokenizer, OtherKindsOfTokenizerJsonAreNamed) {
  const json good = json::parse(RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
  const auto expect = [&](const char* path, const json& value, const std::string& named) {
    json changed = good;
    changed[json::json_pointer(path)] = value;
    TestDir dir;
    dir.Write("tokenizer.json", changed.dump());
    const absl::Status status = LoadTokenizer(dir.path(), kVocab).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_NE(std::string(status.message()).find(named), std::string::npos) << status;
  };
  expect("/model/type", "Unigram", "Unigram");
  expect("/model/type", "WordPiece", "WordPiece");
  expect("/model/dropout", 0.1, "dropout");
  expect("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  expect("/normalizer", {{"type", "NFC"}}, "NFC");
  expect("/pre_tokenizer/type", "Metaspace", "Metaspace");
  expect("/pre_tokenizer", nullptr, "pre_tokenizer");
  expect("/decoder/type", "WordPiece", "WordPiece");
  expect("/post_processor/type", "BertProcessing", "BertProcessing");
  expect("/added_tokens/0/single_word", true, "single_word");
}

TEST(LoadTokenizer, TokenizerJsonOptions) {
  json changed = json::parse(RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
  changed["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {changed["pre_tokenizer"]}}};
  changed["pre_tokenizer"]["pretokenizers"][0]["add_prefix_space"] = false;
  const int32_t size =
      MustLoad(TestDir().Write("tokenizer.json", changed.dump()).path(), kVocab)->info().vocab_size;
  changed["model"]["vocab"]["zq!"] = size;  // no merges lead to it
  const auto encode = [&changed](const std::string& text) {
    TestDir dir;
    dir.Write("tokenizer.json", changed.dump());
    return *MustLoad(dir.path(), kVocab)->Encode(text, false);
  };
  EXPECT_EQ(encode("zq!").size(), 3u);
  changed["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode("zq!").size(), 3u);  // still two pieces: letters, then a sign
  changed["pre_tokenizer"]["pretokenizers"][0]["use_regex"] = false;
  EXPECT_EQ(encode("zq!"), (std::vector<int32_t>{size}));
}

TEST(LoadTokenizer, DamagedFilesNeverCrash) {
  const std::string vocab = SmallVocab().dump();
  for (size_t n = 0; n < vocab.size(); n += 11) UseIfLoaded(LoadPair(vocab.substr(0, n), kMerges));
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
        .Write("merges.txt", kMerges);
    UseIfLoaded(LoadTokenizer(dir.path(), kVocab));
  }
}

}  // namespace
}  // namespace fox
