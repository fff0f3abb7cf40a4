// ByteLevelBpe::Create: refusals that name the file at fault; and encodings in special cases.
#include "models/tokenizer/byte_level_bpe.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "models/tokenizer/bpe_windows.h"
#include "tests/models/refused.h"
#include "tests/models/tokenizer/small_vocabulary.h"

namespace fox {
namespace {

AddedToken Added(const std::string& content, int32_t id) {
  AddedToken token;
  token.content = content;
  token.id = id;
  token.file = "A";
  return token;
}

TEST(ByteLevelBpeTest, ErrorsNameTheFileAtFault) {
  using Damage = std::function<void(BpeDefinition&)>;
  const std::pair<Damage, const char*> kCases[] = {
      {[](auto& d) { d.vocab["new"] = 300; }, "V: token \"new\" has id 300, outside"},
      {[](auto& d) { d.vocab["new"] = -1; }, "V: token \"new\" has id -1, outside"},
      {[](auto& d) { d.vocab["new"] = 256; }, "V: tokens "},
      {[](auto& d) {
         d.vocab.erase("!");
         d.vocab["new"] = '!';
       },
       "V: no token for the byte 33"},
      {[](auto& d) { d.merges.emplace_back("a", "c"); },
       "M: merge of \"a\" and \"c\" needs a token that is not in V"},
      {[](auto& d) { d.merges.emplace_back("", "a"); }, "M: merge of \"\" and \"a\""},
      {[](auto& d) { d.added = {Added("new", 300)}; }, "A: token \"new\" has id 300, outside"},
      {[](auto& d) { d.added = {Added("new", 256)}; }, "A: tokens \"ab\" and \"new\" share the id"},
      {[](auto& d) { d.added = {Added("ab", 259)}; },
       "A: added token \"ab\" has the id 259, but 256 in V"},
      {[](auto& d) { d.added = {Added("", 259)}; }, "A: added token of 0 bytes"},
      {[](auto& d) { d.added = {Added(std::string(513, 'x'), 259)}; }, "A: added token of 513"},
      {[](auto& d) {
         d.added = {Added("x", 120), Added("x", 120)};
       },
       "A: added token \"x\" is"},
      {[](auto& d) { d.prefix = {259}; }, "V: unknown special token id 259"},
      {[](auto& d) { d.suffix = {-1}; }, "V: unknown special token id -1"},
  };
  ASSERT_TRUE(ByteLevelBpe::Create(SmallDefinition(), 300).ok());
  for (const auto& [damage, message] : kCases) {
    BpeDefinition definition = SmallDefinition();
    damage(definition);
    const absl::Status status = ByteLevelBpe::Create(definition, 300).status();
    ExpectRefused(status, message);
    EXPECT_EQ(std::string(status.message()).rfind(std::string(message).substr(0, 3), 0), 0u)
        << status;
  }
}

TEST(ByteLevelBpeTest, RolesAreAddedTokens) {
  BpeDefinition definition = SmallDefinition();
  TokenizerConfig config;
  config.roles = {{"bos_token", Added("<|endoftext|>", 0)}, {"unk_token", Added("<x>", 0)}};
  SetAddedTokens(config, {definition.vocab, definition.vocab.size()}, &definition);
  const auto bpe = ByteLevelBpe::Create(definition, 260);
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  EXPECT_EQ((*bpe)->info().bos_id, 258);
  EXPECT_EQ((*bpe)->info().eos_id, std::nullopt);
  EXPECT_EQ((*bpe)->info().unk_id, 259);
  EXPECT_EQ((*bpe)->info().vocab_size, 260);
  EXPECT_EQ(*(*bpe)->Encode("abcab<x>", false), (std::vector<int32_t>{257, 256, 259}));
}

TEST(ByteLevelBpeTest, AnIdWithoutATokenIsEmpty) {
  BpeDefinition definition = SmallDefinition();
  definition.vocab["new"] = 270;
  const auto bpe = ByteLevelBpe::Create(definition, 300);
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  EXPECT_EQ((*bpe)->info().vocab_size, 271);
  EXPECT_EQ(Detokenize(**bpe, {257, 265, 270}, false), "abcnew");
}

TEST(ByteLevelBpeTest, TextThatSpellsAnAddedTokenStaysText) {
  BpeDefinition definition = SmallDefinition();
  definition.added = {Added("<|endoftext|>", 258), Added("abc", 257), Added("  ", 259)};
  definition.added[0].special = true;
  for (const bool whole : {false, true}) {  // abc has a rule, and is a token as a whole
    SCOPED_TRACE(whole);
    definition.ignore_merges = whole;
    if (whole) definition.pretokenizer.clear();
    const auto bpe = ByteLevelBpe::Create(definition, 260);
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    EXPECT_EQ(*(*bpe)->Encode("abc  ab", false), (std::vector<int32_t>{257, 259, 256}));
    EXPECT_EQ(*(*bpe)->EncodeAsText("abc  ab", true), (std::vector<int32_t>{256, 'c', 259, 256}));
    const std::string end = "<|endoftext|>";
    EXPECT_EQ(*(*bpe)->Encode(end, false), (std::vector<int32_t>{258}));
    EXPECT_EQ(*(*bpe)->EncodeAsText(end, true), (std::vector<int32_t>{end.begin(), end.end()}));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      (*ByteLevelBpe::Create(definition, 260))->EncodeAsText("\xff", true).status()));
}

TEST(ByteLevelBpeTest, BytesWithoutATokenAreDropped) {
  BpeDefinition definition = SmallDefinition();
  definition.vocab.erase("-");
  definition.vocab["new"] = '-';
  definition.drop_unknown_bytes = true;
  const auto bpe = ByteLevelBpe::Create(definition, 300);
  ASSERT_TRUE(bpe.ok()) << bpe.status();
  const std::string text = std::string(kWindowBytes, '-') + std::string(kWindowBytes, '*') + "-*";
  EXPECT_EQ(*(*bpe)->Encode(text, false), (std::vector<int32_t>(kWindowBytes + 1, '*')));
}

TEST(ByteLevelBpeTest, TheInsideOfAJsonString) {
  BpeDefinition definition = SmallDefinition();
  const auto plain = ByteLevelBpe::Create(definition, 300);
  definition.json_escaped = true;
  const auto escaped = ByteLevelBpe::Create(definition, 300);
  ASSERT_TRUE(plain.ok() && escaped.ok());
  EXPECT_EQ((*escaped)->info().kind, "longcrawl64");
  const std::vector<int32_t> ids = *(*escaped)->Encode("abc\n\u00e9\"", false);
  EXPECT_EQ(ids, *(*plain)->Encode("abc\\n\\u00e9\\\"", false));
  EXPECT_EQ((*escaped)->TokenBytes('\\', false), "\\");  // escapes are undone by TokenStream
  EXPECT_EQ(Detokenize(**escaped, ids, false), "abc\n\u00e9\"");
  // Escaping changes these added tokens, or the space that they swallow.
  AddedToken left = Added("<l>", 259), right = Added("<r>", 259);
  left.lstrip = right.rstrip = true;
  for (const AddedToken& token : {Added("<\u00e9>", 259), Added("a\"", 259), Added("a\\", 259),
                                  Added("\n", 259), left, right}) {
    definition.added = {token};
    const absl::Status status = ByteLevelBpe::Create(definition, 300).status();
    ExpectRefused(status, "A: JSONGPT2Tokenizer with the added token");
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  }
}

}  // namespace
}  // namespace fox
