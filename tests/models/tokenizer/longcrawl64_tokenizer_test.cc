// The wrapper of the released models: escapes around GPT-2's BPE, and which added tokens it
// accepts.
#include "models/tokenizer/longcrawl64_tokenizer.h"

#include <gtest/gtest.h>

#include "models/tokenizer/tokenizer.h"
#include "tests/models/refused.h"
#include "tests/models/tokenizer/small_vocabulary.h"

namespace fox {
namespace {

TEST(LongCrawl64TokenizerTest, EncodesTheInsideOfAJsonString) {
  const auto plain = ByteLevelBpe::Create(SmallDefinition(), 300);
  const auto wrapped = LongCrawl64Tokenizer::Create(SmallDefinition(), 300);
  ASSERT_TRUE(plain.ok() && wrapped.ok());
  EXPECT_EQ(*(*wrapped)->Encode("abc\n\u00e9\"", false),
            *(*plain)->Encode("abc\\n\\u00e9\\\"", false));
  EXPECT_EQ((*wrapped)->TokenBytes('\\', false), "\\");  // escapes are undone by TokenStream
  EXPECT_EQ(Detokenize(**wrapped, *(*wrapped)->Encode("abc\n\u00e9\"", false), false),
            "abc\n\u00e9\"");
  EXPECT_EQ((*wrapped)->Encode("\xFF", false).status().code(), absl::StatusCode::kInvalidArgument);
}

// Escaping and cutting at added tokens commute only for these.
TEST(LongCrawl64TokenizerTest, AddedTokensMustNotBeEscapedNorSwallowSpace) {
  AddedToken token{"<|endoftext|>", 258};
  token.file = "A";
  const auto create = [&](const AddedToken& added) {
    BpeDefinition definition = SmallDefinition();
    definition.added = {added};
    return LongCrawl64Tokenizer::Create(definition, 300).status();
  };
  EXPECT_TRUE(create(token).ok());
  for (const char* content : {"<\u00e9>", "a\"", "a\\", "\n"}) {
    AddedToken escaped = token;
    escaped.content = content;
    escaped.id = 259;
    ExpectRefused(create(escaped), "A: JSONGPT2Tokenizer with the added token");
    EXPECT_EQ(create(escaped).code(), absl::StatusCode::kUnimplemented);
  }
  AddedToken left = token, right = token;
  left.lstrip = true;
  right.rstrip = true;
  EXPECT_EQ(create(left).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(create(right).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace fox
