// Lists of tools with a vocabulary of today's size, and grammars whose rules are equal or refer to
// each other in circles.
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/models/grammar/byte_grammar.h"

namespace fox {
namespace {

using Kind = GrammarSource::Kind;

// 150,000 tokens: bytes, words with and without a space, punctuation, pieces of other scripts.
std::vector<std::string> LargeVocabulary() {
  std::vector<std::string> tokens = {""};
  for (int byte = 1; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* piece :
       {"\",", "\"}", "\": ", "\": \"", "\", \"", "{\"", "\\n", "\\\"", "\\u"}) {
    tokens.emplace_back(piece);
  }
  for (int length = 2; length < 100; ++length)
    tokens.emplace_back(static_cast<size_t>(length), ' ');
  const std::vector<std::string> others = {"\u0434", "\u0430", "\u6f22",
                                           "\u5b57", "\u00e9", "\U0001f600"};
  std::mt19937 random(1);
  while (tokens.size() < 150'000) {
    std::string& token = tokens.emplace_back(random() % 2 == 0 ? " " : "");
    const bool is_latin = random() % 4 != 0;
    for (auto i = 1 + random() % 9; i > 0; --i) {
      if (is_latin) {
        token += static_cast<char>('a' + random() % 26);
      } else {
        token += others[random() % others.size()];
      }
    }
  }
  return tokens;
}

// A list of tools as one schema: a name, and arguments with strings of bounded lengths.
std::string Tools(int count) {
  std::string out = R"({"anyOf": [)";
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(
        &out, i > 0 ? ", " : "",
        R"({"type": "object", "additionalProperties": false, "properties": {
        "name": {"const": "tool_)",
        i, R"("}, "arguments": {"type": "object", "properties": {
        "path": {"type": "string", "minLength": 1, "maxLength": )",
        200 + i, R"(}, "query": {"type": "string", "maxLength": )", 20 * i + 10,
        R"(}, "owner": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}, "note": {"type":
        "string"}, "limit": {"type": "number"}}, "required": ["path", "query", "owner", "note",
        "limit"], "additionalProperties": false}}, "required": ["name", "arguments"]})");
  }
  return out + "]}";
}

TEST(EqualRulesTest, ToolsShareTheRulesOfTheirStrings) {
  GrammarCompiler compiler(LargeVocabulary);
  const auto few = compiler.Compile({Kind::kJsonSchema, Tools(2)});
  const auto many = compiler.Compile({Kind::kJsonSchema, Tools(60)});
  ASSERT_TRUE(few.ok() && many.ok()) << few.status() << many.status();
  // Each tool has its own name and lengths, but most bytes are masks, which the tools share.
  EXPECT_LT((*many)->bytes(), 3 * (*few)->bytes());
  EXPECT_LT((*many)->bytes(), 12 << 20);
}

// A long text byte by byte: no step exceeds its work.
TEST(EqualRulesTest, ALongAnswerKeepsToItsSteps) {
  std::vector<std::string> tokens = LargeVocabulary();
  GrammarCompiler compiler([&] { return tokens; });
  const auto grammar = *compiler.Compile({Kind::kJsonSchema, Tools(20)});
  for (const int length : {1, 150, 183, 184, 185, 199, 200}) {
    SCOPED_TRACE(length);
    GrammarMatcher matcher(grammar, {0});
    const std::string text = absl::StrCat(
        R"({"name": "tool_0", "arguments": {"path": ")",
        std::string(static_cast<size_t>(length), 'x'),
        R"(", "query": "\n\ud83d\ude00", "owner": "a-1", "note": "\"", "limit": -1.5}})");
    for (const char c : text) {
      const auto id = static_cast<int32_t>(static_cast<unsigned char>(c));
      ASSERT_NE(matcher.mask()[static_cast<size_t>(id) / 32] >> (id % 32) & 1, 0U) << text << c;
      ASSERT_TRUE(matcher.Accept(id).ok()) << matcher.status() << text;
    }
    EXPECT_TRUE(matcher.may_end());
  }
}

TEST(EqualRulesTest, TextsStayTheSame) {
  struct Case {
    const char* grammar;
    std::vector<std::string> texts, others;
  };
  const Case cases[] = {
      {"root ::= \"1\" c | \"2\" d\nc ::= \"(\" c \")\" | \"z\"\nd ::= \"(\" d \")\" | \"z\"\n",
       {"1z", "2((z))"},
       {"1(z", "z", "1z2z"}},
      {"root ::= a | \"-\" b\na ::= \"x\" b | \"y\"\nb ::= \"x\" a | \"y\" | \"w\"\n",
       {"y", "xy", "xw", "xxy", "-w", "-xy"},
       {"w", "xxw", "-xw", "x"}},
      {"root ::= a b c\na ::= [0-9]{1,20} \"a\"\nb ::= [0-9]{1,20} \"a\"\nc ::= [0-9]{1,20} "
       "\"b\"\n",
       {"1a2a3b"},
       {"1a2b3b", "a1a2b"}},
  };
  for (const Case& c : cases) {
    const auto grammar = ByteCompiler().Compile({Kind::kGrammar, c.grammar});
    ASSERT_TRUE(grammar.ok()) << c.grammar << grammar.status();
    for (const std::string& text : c.texts) EXPECT_TRUE(Accepts(*grammar, text)) << text;
    for (const std::string& text : c.others) EXPECT_FALSE(Accepts(*grammar, text)) << text;
  }
}

}  // namespace
}  // namespace fox
