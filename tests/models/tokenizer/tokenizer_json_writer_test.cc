// Whether what is written says what the tokenizer does: byte-level BPE is read back by our own
// reader, sentencepiece's merge rules are applied here. tests/e2e/tokenizer_json_test.py asks the
// library that gateways use.
#include "models/tokenizer/tokenizer_json_writer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "models/tokenizer/longcrawl64_tokenizer.h"
#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "models/tokenizer/tokenizer_json.h"
#include "tests/models/tokenizer/model_proto_writer.h"
#include "tests/models/tokenizer/small_vocabulary.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

using Json = nlohmann::json;

std::unique_ptr<ByteLevelBpe> ReadBack(const std::string& json) {
  absl::StatusOr<BpeDefinition> definition = ParseTokenizerJson(json, TokenizerConfig());
  EXPECT_TRUE(definition.ok()) << definition.status();
  absl::StatusOr<std::unique_ptr<ByteLevelBpe>> bpe = ByteLevelBpe::Create(*definition, kGpt2Vocab);
  EXPECT_TRUE(bpe.ok()) << bpe.status();
  return *std::move(bpe);
}

std::string RandomText(std::mt19937* random) {
  static const std::vector<std::string> kParts = {"a",
                                                  "b",
                                                  "c",
                                                  "ab",
                                                  " ",
                                                  "  ",
                                                  "\n",
                                                  "'s",
                                                  "1",
                                                  "\xC3\xA9",
                                                  "\xE2\x80\x9C",
                                                  "\xF0\x9F\xA6\x8A",
                                                  "the",
                                                  " fox",
                                                  "<|endoftext|>",
                                                  "\xE2\x96\x81",
                                                  ".",
                                                  "aaaa",
                                                  "====",
                                                  "\t",
                                                  "<s>"};
  std::string text;
  for (size_t n = (*random)() % 30; n > 0; --n) text += kParts[(*random)() % kParts.size()];
  return text;
}

// Both cut any text alike and give the same bytes and special tokens.
void ExpectEqual(const Tokenizer& left, const Tokenizer& right) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const std::string text = RandomText(&random);
    EXPECT_EQ(*left.Encode(text, false), *right.Encode(text, false)) << text;
  }
  ASSERT_EQ(left.info().vocab_size, right.info().vocab_size);
  for (int32_t id = 0; id < left.info().vocab_size; ++id) {
    EXPECT_EQ(left.TokenBytes(id, true), right.TokenBytes(id, true)) << id;
    EXPECT_EQ(left.TokenBytes(id, false), right.TokenBytes(id, false)) << id;
  }
}

TEST(TokenizerJsonWriterTest, Gpt2ReadsBackAsItself) {
  const std::unique_ptr<Tokenizer> gpt2 = LoadGpt2("{}");
  const absl::StatusOr<std::string> json = gpt2->ToJson();
  ASSERT_TRUE(json.ok()) << json.status();
  ExpectEqual(*gpt2, *ReadBack(*json));
}

TEST(TokenizerJsonWriterTest, OptionsAndAddedTokensSurvive) {
  for (int options = 0; options < 8; ++options) {
    BpeDefinition definition = SmallDefinition();
    definition.add_prefix_space = options & 1;
    definition.use_regex = options & 2;
    definition.ignore_merges = options & 4;
    definition.merges.emplace_back("a", "b");  // a rule again: the later rank counts
    AddedToken end{"<|endoftext|>", 258, false, false, false, /*special=*/true, "A"};
    AddedToken wide{"two words", 259, /*lstrip=*/true, /*rstrip=*/true, false, false, "A"};
    definition.added = {end, wide};
    definition.prefix = {258};
    const auto bpe = ByteLevelBpe::Create(definition, 260);
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    const absl::StatusOr<std::string> json = (*bpe)->ToJson();
    ASSERT_TRUE(json.ok()) << json.status();
    const std::unique_ptr<ByteLevelBpe> back = ReadBack(*json);
    ExpectEqual(**bpe, *back);
    const std::string text = "abc two words ab<|endoftext|>";
    EXPECT_EQ(*(*bpe)->Encode(text, false), *back->Encode(text, false));
    EXPECT_TRUE(back->info().prefix.empty());  // the server's business
  }
}

TEST(TokenizerJsonWriterTest, LongCrawl64IsGpt2WithoutEscapes) {
  const std::unique_ptr<Tokenizer> wrapper = LoadLongCrawl64();
  EXPECT_EQ(wrapper->ToJson().status().code(), absl::StatusCode::kUnimplemented);
  const std::unique_ptr<Tokenizer> gpt2 = LoadGpt2("{}");
  EXPECT_EQ(*wrapper->Unescaped().ToJson(), *gpt2->ToJson());
  EXPECT_EQ(&gpt2->Unescaped(), gpt2.get());
}

// What the library does with the file: characters, then the rule of the lowest rank, the leftmost.
std::vector<std::string> Pieces(const Json& json, std::string text) {
  for (const Json& step : json["normalizer"]["normalizers"]) {
    if (step["type"] == "Prepend" && !text.empty()) text.insert(0, step["prepend"]);
    if (step["type"] != "Replace" || !step["pattern"].contains("String")) continue;
    const std::string from = step["pattern"]["String"], to = step["content"];
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
  std::map<std::pair<std::string, std::string>, size_t> rank;
  for (const Json& merge : json["model"]["merges"]) {
    rank.emplace(std::pair(merge[0].get<std::string>(), merge[1].get<std::string>()), rank.size());
  }
  std::vector<std::string> symbols;
  for (size_t i = 0; i < text.size();) {
    const size_t length = NextUtf8(text.data() + i, text.size() - i).length;
    symbols.push_back(text.substr(i, length));
    i += length;
  }
  for (;;) {
    size_t best = rank.size(), at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = rank.find({symbols[i], symbols[i + 1]});
      if (it != rank.end() && it->second < best) best = it->second, at = i;
    }
    if (best == rank.size()) return symbols;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<int64_t>(at) + 1);
  }
}

std::vector<int32_t> Ids(const Json& json, const std::string& text) {
  const Json& vocab = json["model"]["vocab"];
  std::vector<int32_t> ids;
  for (const std::string& piece : Pieces(json, text)) {
    if (vocab.contains(piece)) {
      ids.push_back(vocab[piece]);
      continue;
    }
    for (char byte : piece) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<uint8_t>(byte));
      ids.push_back(vocab[name]);
    }
  }
  return ids;
}

TEST(TokenizerJsonWriterTest, DemoRulesGiveTheLibrarysIds) {
  const std::unique_ptr<Tokenizer> demo = LoadDemo();
  const absl::StatusOr<std::string> text = demo->ToJson();
  ASSERT_TRUE(text.ok()) << text.status();
  const Json json = Json::parse(*text);
  EXPECT_EQ(json["model"]["vocab"].size(), static_cast<size_t>(kDemoVocab));
  EXPECT_EQ(json["model"]["vocab"]["<0x0A>"], demo->Encode("\n", false)->back());
  EXPECT_TRUE(json["model"]["byte_fallback"]);
  EXPECT_TRUE(json["post_processor"].is_null());  // bos is the server's
  EXPECT_EQ(json["added_tokens"].size(), 3u);
  for (const Json& token : json["added_tokens"]) EXPECT_TRUE(token["special"]);
  EXPECT_EQ(json["decoder"].dump().find("Strip"), std::string::npos);
  const std::string prompt = RepositoryFile("models/demo/prompt_long.txt");
  for (size_t i = 0; i < 20; ++i) {
    const std::string part = prompt.substr(prompt.find(' ', 500 * i), 300);
    if (!IsValidUtf8(part)) continue;
    EXPECT_EQ(Ids(json, part), *demo->Encode(part, false)) << part;
  }
  for (const char* odd :
       {"aaaaaaa ======= \xE2\x96\x81  b", "  in front", "\xF0\x9F\xA6\x8A", ""}) {
    EXPECT_EQ(Ids(json, odd), *demo->Encode(odd, false)) << odd;
  }
}

Json Written(const std::string& model) {
  const absl::StatusOr<SentencePieceFile> file = CheckSentencePieceModel(model);
  EXPECT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<std::string> json = WriteTokenizerJson(*file);
  EXPECT_TRUE(json.ok()) << json.status();
  return Json::parse(*json);
}

TEST(TokenizerJsonWriterTest, SettingsOfSentencepieceShow) {
  const Json plain = Written(Start() + Letters() + Trainer(false) + Spaces(false, false));
  EXPECT_EQ(plain["normalizer"]["normalizers"].size(), 1u);  // a space is a visible one
  EXPECT_FALSE(plain["model"]["byte_fallback"]);
  EXPECT_EQ(plain["model"]["unk_token"], "<unk>");
  EXPECT_EQ(plain["model"]["merges"], Json::parse(R"([["a", "b"]])"));
  const Json spaces = Written(Start() + Letters() + Trainer(false) + Spaces(true, true));
  EXPECT_EQ(spaces["normalizer"]["normalizers"].size(), 5u);
  EXPECT_EQ(spaces["normalizer"]["normalizers"][3]["type"], "Prepend");
}

TEST(TokenizerJsonWriterTest, ALoadedModelStillKnowsItsNormalizer) {
  for (const bool prefix : {false, true}) {
    for (const bool extra : {false, true}) {
      const std::string model = Start() + Letters() + Trainer(false) + Spaces(prefix, extra);
      const auto tokenizer = SentencePieceTokenizer::Create(model, /*add_bos=*/true, 100);
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      EXPECT_EQ(Json::parse(*(*tokenizer)->ToJson()), Written(model));
    }
  }
}

TEST(TokenizerJsonWriterTest, WhatTheFormatCannotSayIsRefused) {
  const std::string base = Start() + Letters() + Trainer(false);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Start() + Letters() + BytesField(2, VarintField(3, 1)), "not BPE"},
      {base + BytesField(2, VarintField(24, 1)), "suffixes"},
      {base + BytesField(3, VarintField(5, 0)), "not escaped"},
      {base + PieceField("user", PieceType::kUserDefined), "user-defined"},
      {base + PieceField("ba", PieceType::kUnused), "unused"},
  };
  for (const auto& [model, reason] : cases) {
    const absl::StatusOr<SentencePieceFile> file = CheckSentencePieceModel(model);
    ASSERT_TRUE(file.ok()) << file.status();
    const absl::StatusOr<std::string> json = WriteTokenizerJson(*file);
    EXPECT_EQ(json.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_NE(json.status().message().find(reason), absl::string_view::npos) << json.status();
  }
}

}  // namespace
}  // namespace fox
