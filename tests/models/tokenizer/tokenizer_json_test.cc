// tokenizer.json: options that are understood, and options that are refused by name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer/bpe_definition.h"
#include "tests/models/refused.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

using nlohmann::json;

constexpr int64_t kVocab = 1000;

TEST(TokenizerJsonTest, UnsupportedOptionsAreNamed) {
  const json good = json::parse(RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
  const auto expect = [&](const char* path, const json& value, const std::string& named) {
    json changed = good;
    changed[json::json_pointer(path)] = value;
    const absl::Status status = ParseTokenizerJson(changed.dump(), {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_NE(std::string(status.message()).find(named), std::string::npos) << status;
  };
  expect("/model/type", "Unigram", "Unigram");
  expect("/model/type", "WordPiece", "WordPiece");
  expect("/model/dropout", 0.1, "dropout");
  expect("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  expect("/normalizer", {{"type", "NFKC"}}, "normalizer \"NFKC\" is not supported; supported: NFC");
  const std::string behind =
      "; supported: ByteLevel, alone or in a Sequence behind Split and Digits";
  expect("/pre_tokenizer/type", "Metaspace", "\"Metaspace\" is not supported" + behind);
  expect("/pre_tokenizer", nullptr, "pre_tokenizer \"null\" is not supported" + behind);
  const json level = good["pre_tokenizer"], digits = {{"type", "Digits"}};
  const auto sequence = [](const json& steps) {
    return json{{"type", "Sequence"}, {"pretokenizers", steps}};
  };
  expect("/pre_tokenizer", sequence({level, digits}), "\"ByteLevel and more\"");
  expect("/pre_tokenizer", sequence(json::array({digits})), "\"Digits\" is not supported" + behind);
  const json split = {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Odd"}};
  expect("/pre_tokenizer", sequence({split, level}), "Split behavior \"Odd\" is not supported");
  expect("/decoder/type", "WordPiece", "WordPiece");
  expect("/post_processor/type", "BertProcessing", "BertProcessing");
}

TEST(TokenizerJsonTest, OtherFormsOfByteFallbackAreRefused) {
  const json good = json::parse(RepositoryFile("tests/models/tokenizer/fallback_tokenizer.json"));
  const auto expect = [&](const char* path, const json& value, const std::string& named) {
    json changed = good;
    changed[json::json_pointer(path)] = value;
    TemporaryDir dir;
    dir.Write("tokenizer.json", changed.dump());
    const absl::Status status = LoadTokenizer(dir.path(), kVocab).status();
    EXPECT_NE(std::string(status.message()).find(named), std::string::npos) << status;
  };
  expect("/model/byte_fallback", false,
         "decoder \"Replace\" is not supported; supported: ByteLevel");
  expect("/model/ignore_merges", true, "ignore_merges with byte_fallback");
  expect("/decoder/decoders/3/start", 2, "supported: with byte_fallback: Replace of U+2581");
  expect("/decoder/decoders/4", {{"type", "Fuse"}}, R"(decoder "{"type":"Fuse"}" is not)");
  expect("/normalizer", {{"type", "Prepend"}, {"prepend", "x"}},
         "\"Prepend\" is not supported; sup");
  expect("/normalizer", {{"type", "NFKC"}}, "supported: NFC, Prepend and Replace of U+2581");
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "_"}};
  expect("/pre_tokenizer", metaspace, "pre_tokenizer Metaspace \"_\" is not supported");
  expect("/pre_tokenizer", good["decoder"], "pre_tokenizer Sequence");
  expect("/pre_tokenizer", {{"type", "ByteLevel"}}, "with byte_fallback: Metaspace, behind it");
  const auto refused = [](const json& changed, const std::string& named) {
    TemporaryDir dir;
    dir.Write("tokenizer.json", changed.dump());
    ExpectRefused(LoadTokenizer(dir.path(), kVocab).status(), named);
  };
  json changed = good;
  changed["model"]["vocab"]["<0x41>a"] = 999;
  changed["model"]["merges"][0] = {"<0x41>", "a"};
  json ids = json::object();
  for (const auto& [token, id] : changed["model"]["vocab"].items()) ids[token] = ids.size();
  changed["model"]["vocab"] = ids;
  changed["added_tokens"] = json::array();
  refused(changed, "merge of \"<0x41>\" and \"a\" concerns a token of byte_fallback");
  ids["A0x"] = ids["<0x41>"];
  ids.erase("<0x41>");
  changed["model"]["vocab"] = ids;
  refused(changed, "no token for the byte 65");
}

TEST(TokenizerJsonTest, Options) {
  json changed = json::parse(RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
  changed["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {changed["pre_tokenizer"]}}};
  changed["pre_tokenizer"]["pretokenizers"][0]["add_prefix_space"] = false;
  const auto size = static_cast<int32_t>(changed["model"]["vocab"].size());
  changed["model"]["vocab"]["zq!"] = size;  // no merges lead to it
  const auto encode = [&changed](const std::string& text) {
    TemporaryDir dir;
    dir.Write("tokenizer.json", changed.dump());
    return *MustLoad(dir.path(), kVocab)->Encode(text, false);
  };
  EXPECT_EQ(encode("zq!").size(), 3u);
  changed["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode("zq!").size(), 3u);  // still two pieces: letters, then a sign
  changed["pre_tokenizer"]["pretokenizers"][0]["use_regex"] = false;
  EXPECT_EQ(encode("zq!"), (std::vector<int32_t>{size}));
}

TEST(TokenizerJsonTest, SpecialTokensAroundAText) {
  const auto parse = [](const json& single) {
    json changed = json::parse(RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
    changed["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", single},
        {"special_tokens", {{"<a>", {{"ids", {7, 8}}}}, {"<b>", {{"ids", {9}}}}}}};
    return ParseTokenizerJson(changed.dump(), {});
  };
  const auto special = [](const char* name) { return json{{"SpecialToken", {{"id", name}}}}; };
  const json text = {{"Sequence", {{"id", "A"}}}};
  const auto definition = parse({special("<a>"), text, special("<b>"), special("<a>")});
  ASSERT_TRUE(definition.ok()) << definition.status();
  EXPECT_EQ(definition->prefix, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(definition->suffix, (std::vector<int32_t>{9, 7, 8}));
  EXPECT_STREQ(definition->vocab_file, "tokenizer.json");
  EXPECT_STREQ(definition->merges_file, "tokenizer.json");
  ExpectRefused(parse({text, text}).status(), "TemplateProcessing with two sequences");
  ExpectRefused(parse({special("<c>"), text}).status(), "tokenizer.json: TemplateProcessing");
}

TEST(TokenizerJsonTest, MalformedFilesNameTheirFile) {
  const json good = json::parse(RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
  const auto expect_text = [](const std::string& text, const std::string& part) {
    ExpectRefused(ParseTokenizerJson(text, {}).status(), "tokenizer.json: " + part);
  };
  expect_text(good.dump() + "x", "not valid JSON");
  expect_text(good.dump() + std::string("\0garbage", 8), "not valid JSON");
  expect_text("[]", "not a JSON object");
  expect_text("{}", "no model");
  const auto expect = [&](const char* path, const json& value, const std::string& part) {
    json changed = good;
    changed[json::json_pointer(path)] = value;
    expect_text(changed.dump(), part);
  };
  expect("/model/vocab/a", -1, "id of token \"a\"");
  expect("/model/vocab", 1, "model has no vocab");
  expect("/model/merges", 1, "model has no merges");
  expect("/model/merges/0", "a b c", "merge 0 is not two tokens");
  expect("/model/merges/0", {"a"}, "merge 0 is not two tokens");
  expect("/added_tokens", 1, "added_tokens is not a list");
  expect("/added_tokens/0/id", -1, "an added token");
  expect("/decoder", json::object(), "decoder has no type");
}

}  // namespace
}  // namespace fox
