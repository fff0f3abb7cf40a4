// Grammars in GBNF, the notation of llama.cpp (its grammars/README.md). llama.cpp's grammar files
// are tested at night (grammar_oracle_test.py).
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/models/grammar/byte_grammar.h"

namespace fox {
namespace {

struct Case {
  std::string grammar;
  std::vector<std::string> texts, others;
};

TEST(XgrammarTest, ReadsGbnf) {
  const Case cases[] = {
      {"root ::= \"a\" ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n",
       {"a", "a ", "a\n\t "},
       {"a  "}},
      {"root ::= (\"a\" | ) \"b\"", {"b", "ab"}, {"a"}},
      {"root ::= \"x\" (\n  \"a\" |\n)\n", {"x", "xa"}, {"a"}},
      {"root ::= \"a\" |\n  \"b\"\n", {"a", "b"}, {""}},
      {"root ::=\n", {""}, {"a"}},
      {"root ::= .", {"a", "\n", "\u00e9", "\U0001f600"}, {"", "ab", "\xc3", "\xff"}},
      {"root ::= \"<\" .* \">\"", {"<>", "<a\n\u3042>"}, {"<"}},
      {"root ::= hiragana+\nhiragana ::= [\u3041-\u309f]",
       {"\u3042\u3044"},
       {"a", "\u30a2", "\u4e00"}},
      {"root ::= [^\u00e4\\n]", {"a", "\u00f6"}, {"\u00e4", "\n"}},
      {"root ::= [\\u3041-\\U0000309F] \"\\xe9\"", {"\u3042\u00e9"}, {"a"}},
      {"root ::= [^\"\\\\\\x7F\\x00-\\x1F] | [\\\\] ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4})",
       {"a", "\\n", "\\u12aF", "\u00e9"},
       {"\x7f", "\x01", "\"", "\\u12"}},
      {"root ::= \"\\x41b\"", {"Ab"}, {"A"}},
      {"root ::= \"\\[\" [\\[\\]^-]+ \"\\]\"", {"[[]^-]"}, {"[a]"}},
      // Names of letters of both cases, digits, dashes and underscores.
      {"root ::= 1st check-mate dataType UPPER-CASE rule_123 true\n1st ::= \"1\"\ncheck-mate ::= "
       "\"2\""
       "\ndataType ::= \"3\"\nUPPER-CASE ::= \"4\"\nrule_123 ::= \"5\"\ntrue ::= \"6\"",
       {"123456"},
       {"1"}},
      {"root ::= (\n  # a comment\n  \"1. \" move \" \" move \"\\n\"\n\n  ([1-9] [0-9]? \". \" "
       "move \" \""
       " move \"\\n\")+\n)\nmove ::= (pawn | castle) [+#]?\npawn ::= [a-h] [1-8]\n"
       "castle ::= \"O-O\" \"-O\"?\n",
       {"1. e4 e5\n2. O-O-O d5+\n"},
       {"1. e4 e5\n"}},
      // A class that repeats in front of itself takes no character of the one behind it.
      {"root ::= [a]* [a] [b]", {"ab", "aaab"}, {"b"}},
      {"root ::= \"a\"* \"a\" \"b\"?", {"a", "aa", "aab"}, {"", "b"}},
      {"root ::= \"a\"{2,} \"a\" \"b\"?", {"aaa", "aaaab"}, {"aa", "aab"}},
      {"root ::= (\"x\"* \"x\"){3}", {"xxx", "xxxxx"}, {"xx"}},
      {"root ::= \"a\"{3} \"b\"{2,} \"c\"{0,2} [d]{0}",
       {"aaabb", "aaabbbcc"},
       {"aabb", "aaabbccc"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.grammar);
    const auto grammar = ByteCompiler().Compile({GrammarSource::Kind::kGrammar, c.grammar});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    for (const std::string& text : c.texts) EXPECT_TRUE(Accepts(*grammar, text)) << text;
    for (const std::string& text : c.others) EXPECT_FALSE(Accepts(*grammar, text)) << text;
  }
}

// Overlong forms, surrogates, code points beyond the last and single bytes are ill-formed (RFC
// 3629).
TEST(XgrammarTest, IllFormedTextIsOfNoClass) {
  for (const char* regex : {"[^\"]", ".", "[^\"]{1,40}", ".*", "[^\"]+x?", "a{0,3}[^\"]", "\\W"}) {
    const auto grammar = *ByteCompiler().Compile({GrammarSource::Kind::kRegex, regex});
    EXPECT_TRUE(Accepts(grammar, "\u00e9")) << regex;
    for (const char* text : {"\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe0\x80\x80",
                             "\xff", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xc3\xc3\xa9"}) {
      EXPECT_FALSE(Accepts(grammar, text)) << regex << " " << testing::PrintToString(text);
    }
  }
}

}  // namespace
}  // namespace fox
