// Every tokenizer against its reference implementation, by the vectors that make_vectors.py wrote.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer/json_escape.h"
#include "models/tokenizer/token_stream.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

using Ids = std::vector<int32_t>;

const nlohmann::json& Vectors() {
  static const auto* vectors = new nlohmann::json(TokenizerVectors());
  return *vectors;
}

void ExpectEncodes(const Tokenizer& tokenizer, const nlohmann::json& rows, bool special) {
  ASSERT_FALSE(rows.empty());
  for (const auto& row : rows) {
    const auto text = row[0].get<std::string>();
    const auto ids = tokenizer.Encode(text, special);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, row[1].get<Ids>()) << row.dump();
  }
}

void ExpectDecodes(const Tokenizer& tokenizer, const nlohmann::json& rows) {
  ASSERT_FALSE(rows.empty());
  for (const auto& row : rows) {
    const auto ids = row[0].get<Ids>();
    EXPECT_EQ(Detokenize(tokenizer, ids, true), row[1].get<std::string>()) << row.dump();
    if (row.size() > 2) {
      EXPECT_EQ(Detokenize(tokenizer, ids, false), row[2].get<std::string>()) << row.dump();
    }
  }
}

// FNV-1a of the ids of each text and of the text that they decode to.
uint64_t Hash(const Tokenizer& tokenizer, const std::vector<std::string>& texts, bool decoded) {
  uint64_t hash = 0xCBF29CE484222325u;
  const auto add = [&hash](uint64_t number) { hash = (hash ^ number) * 0x100000001B3u; };
  for (const std::string& text : texts) {
    const auto ids = tokenizer.Encode(text, false);
    EXPECT_TRUE(ids.ok()) << ids.status();
    if (!ids.ok()) return 0;
    for (const int32_t id : *ids) add(static_cast<uint64_t>(id));
    if (!decoded) continue;
    for (const char byte : Detokenize(tokenizer, *ids, true)) add(static_cast<uint8_t>(byte));
  }
  return hash;
}

TEST(TokenizerVectorsTest, Gpt2) {
  const auto tokenizer = LoadGpt2("{}");
  EXPECT_EQ(tokenizer->info().kind, "byte_level_bpe");
  EXPECT_EQ(tokenizer->info().vocab_size, kGpt2Vocab);
  EXPECT_EQ(tokenizer->info().bos_id, 50256);
  EXPECT_EQ(tokenizer->info().eos_id, 50256);
  ExpectEncodes(*tokenizer, Vectors()["gpt2"]["encode"], false);
  ExpectEncodes(*tokenizer, Vectors()["gpt2"]["encode_special"], true);
  ExpectDecodes(*tokenizer, Vectors()["gpt2"]["decode"]);
}

TEST(TokenizerVectorsTest, TokenizerJson) {
  const auto tokenizer = LoadSmall();
  EXPECT_EQ(tokenizer->info().kind, "byte_level_bpe");
  ExpectEncodes(*tokenizer, Vectors()["small"]["encode"], false);
  ExpectEncodes(*tokenizer, Vectors()["small"]["encode_special"], true);
  ExpectDecodes(*tokenizer, Vectors()["small"]["decode"]);
}

TEST(TokenizerVectorsTest, LongCrawl64) {
  const auto tokenizer = LoadLongCrawl64();
  EXPECT_EQ(tokenizer->info().kind, "longcrawl64");
  EXPECT_TRUE(tokenizer->info().json_escaped);
  ExpectEncodes(*tokenizer, Vectors()["longcrawl64"]["encode_special"], true);
  for (const auto& row : Vectors()["longcrawl64"]["escape"]) {
    const auto text = row[0].get<std::string>();
    SCOPED_TRACE(text);
    std::string escaped = JsonEscape(text);
    EXPECT_EQ(escaped, row[1].get<std::string>());
    std::string back;
    JsonUnescape(&escaped, true, &back);
    EXPECT_EQ(back, text);
  }
}

TEST(TokenizerVectorsTest, SentencePiece) {
  const auto tokenizer = LoadDemo();
  EXPECT_EQ(tokenizer->info().kind, "sentencepiece");
  EXPECT_EQ(tokenizer->info().bos_id, 1);
  EXPECT_EQ(tokenizer->info().eos_id, 2);
  ExpectEncodes(*tokenizer, Vectors()["sentencepiece"]["encode_special"], true);
  ExpectDecodes(*tokenizer, Vectors()["sentencepiece"]["decode"]);
}

// Each pre-tokenizer on the samples and on all code points, with other characters around each.
TEST(TokenizerVectorsTest, Pretokenizers) {
  std::vector<std::string> texts;
  for (const auto& row : Vectors()["gpt2"]["encode"]) texts.push_back(row[0]);
  int count = 0;
  for (uint32_t c = 0; c < 0x32400; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (count++ % 64 == 0) texts.emplace_back();
    for (const char* before : {"a", "1", "!", " ", "'"}) {
      texts.back() += before;
      AppendUtf8(c, &texts.back());
    }
    texts.back() += "\u0316a";
  }
  for (const auto& row : Vectors()["pretokenizers"]) {
    const auto tokenizer = LoadWith("edges_tokenizer.json", row[0], row[1]);
    EXPECT_EQ(Hash(*tokenizer, texts, false), row[2].get<uint64_t>()) << row.dump();
  }
}

TEST(TokenizerVectorsTest, ByteFallback) {
  std::vector<std::string> texts;
  for (const auto& row : Vectors()["gpt2"]["encode"]) texts.push_back(row[0]);
  texts.insert(texts.end(),
               {"</s> a<s>b <s>", "upon a  sea \tupon a", "sea a", " <unk>sea", "<0x41>\u2581<0x",
                "a two words b", "two words", "two words two words", "sea\t\t\t",
                " \t\t x\t\tsea \t\tsea", "", std::string(40'000, ' ') + "in a"});
  for (int i = 0; i < 9'000; ++i) *(texts.end() - 2) += "a\u4e00\u4e8c";  // several windows
  for (const auto& row : Vectors()["fallback"]) {
    const auto tokenizer = LoadWith("fallback_tokenizer.json", row[0], row[1]);
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(tokenizer->info().kind, "byte_fallback_bpe");
    EXPECT_EQ(Hash(*tokenizer, texts, true), row[2].get<uint64_t>());
  }
}

// Forms of LLaMA-2's tokenizer, and the ids that `tokenizers` 0.23.3 gives.
TEST(TokenizerVectorsTest, ByteFallbackForms) {
  auto runs =
      nlohmann::json::parse(RepositoryFile("tests/models/tokenizer/fallback_tokenizer.json"));
  const nlohmann::json vocab = runs["model"]["vocab"];
  runs["normalizer"] = Vectors()["fallback"][0][1];
  nlohmann::json without_bytes = runs;
  // User-defined pieces of sentencepiece: spaces of a text match them once they are visible.
  for (const char* content : {"\u2581\u2581", "the\u2581"}) {
    runs["added_tokens"].push_back({{"id", vocab[content]}, {"content", content}});
  }
  without_bytes["model"]["unk_token"] = nullptr;
  for (const auto& [token, id] : vocab.items()) {
    if (!token.starts_with("<0x")) continue;
    without_bytes["model"]["vocab"].erase(token);
    without_bytes["model"]["vocab"][token.substr(1)] = id;
  }
  const auto expect = [](const nlohmann::json& form, const char* rows) {
    TemporaryDir dir;
    dir.Write("tokenizer.json", form.dump());
    ExpectEncodes(*MustLoad(dir.path(), 2000), nlohmann::json::parse(rows), false);
  };
  expect(runs, R"([["a  b", [297, 487]], ["  ", [330]], ["    x", [308, 297, 293]],
      ["\u2581\u2581", [300]], ["a\u2581\u2581 b the the", [351, 300, 300, 275, 453, 435]],
      ["</s>  the", [2, 330, 435]]])");
  expect(without_bytes, R"([["caf\u00e9 Zed", [297, 488, 297, 278, 277]], ["Q", [297]],
      ["\u4e00a \ud83d\ude00", [297, 335, 298]], ["xQy\u4e00\u4e8cz", [297, 293, 294]]])");
}

// Text comes back after encoding and decoding, if the tokenizer replaces and normalizes nothing.
TEST(TokenizerVectorsTest, RoundTrip) {
  const auto gpt2 = LoadGpt2("{}");
  const auto longcrawl64 = LoadLongCrawl64();
  for (const auto& row : Vectors()["gpt2"]["encode"]) {
    const auto text = row[0].get<std::string>();
    SCOPED_TRACE(text);
    EXPECT_EQ(Detokenize(*gpt2, *gpt2->Encode(text, false), false), text);
    EXPECT_EQ(Detokenize(*longcrawl64, *longcrawl64->Encode(text, false), false), text);
  }
}

}  // namespace
}  // namespace fox
