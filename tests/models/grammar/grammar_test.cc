// Random walks through grammars: every answer that ends is valid, with any choice of tokens.
// Hostile sources are refused or bounded.
#include "models/grammar/grammar.h"

#include <functional>
#include <random>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/grammar/call_grammar.h"
#include "models/grammar/json_schema.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer/small_vocabulary.h"

namespace fox {
namespace {

using Kind = GrammarSource::Kind;

constexpr int32_t kEnd = 0, kAdded = 1;  // tokens without text

// All bytes, and pieces that cross the borders between a grammar's symbols.
std::vector<std::string> Tokens() {
  std::vector<std::string> tokens = {"", ""};
  for (int byte = 1; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* piece :
       {"{\"",   "\":", "\": ", "\", \"", "\"}", "}]",   "], ", ", ", "true", "null",
        "false", "12",  "-1",   ".5",     "e+",  "name", "age", " a", "ab",   "\\\"",
        "}}",    "ä",   "日本", "\xc3",   "\n",  "yes",  "no",  "0.", "[[",   "]]"}) {
    tokens.emplace_back(piece);
  }
  return tokens;
}

GrammarCompiler& Compiler() {
  static GrammarCompiler compiler(Tokens);
  return compiler;
}

bool Allows(const GrammarMatcher& matcher, int32_t id) {
  return (matcher.mask()[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

// An answer of random tokens, in which tokens that close something are frequent. No value: it did
// not end.
std::optional<std::string> Walk(const std::shared_ptr<const Grammar>& grammar, uint32_t seed) {
  static const std::vector<std::string> tokens = Tokens();
  std::mt19937 random(seed);
  GrammarMatcher matcher(grammar, {kEnd});
  std::string bytes, text;  // as a client gets it: no ill-formed characters
  for (int step = 0; step < 400 && !matcher.must_end(); ++step) {
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 0; id < static_cast<int32_t>(tokens.size()); ++id) {
      if (!Allows(matcher, id)) continue;
      allowed.push_back(id);
      const std::string& token = tokens[static_cast<size_t>(id)];
      if (id == kEnd || absl::StrContains("\"}]", token.substr(0, 1))) closing.push_back(id);
    }
    EXPECT_FALSE(Allows(matcher, kAdded));
    EXPECT_EQ(Allows(matcher, kEnd), matcher.may_end());
    if (allowed.empty()) return ADD_FAILURE() << "nothing may follow " << text, text;
    const auto& from = !closing.empty() && random() % 3 == 0 ? closing : allowed;
    const int32_t id = from[random() % from.size()];
    if (id == kEnd) break;
    bytes += tokens[static_cast<size_t>(id)];
    DrainUtf8(&bytes, false, Utf8Replacement::kSubpart, &text);
    EXPECT_TRUE(matcher.Accept(id).ok()) << matcher.status() << " after " << text;
    if (!matcher.status().ok()) return {};
  }
  DrainUtf8(&bytes, true, Utf8Replacement::kSubpart, &text);
  return matcher.may_end() ? std::optional(text) : std::nullopt;
}

struct Row {
  GrammarSource source;
  std::function<bool(const std::string&)> is_valid;
};

std::function<bool(const std::string&)> Matches(const std::string& regex) {
  return [regex](const std::string& text) { return std::regex_match(text, std::regex(regex)); };
}

// Other schemas are walked by json_schema_test.py, which validates the texts by jsonschema.
std::vector<Row> Rows() {
  const auto regex = [](const char* text) { return Row{{Kind::kRegex, text}, Matches(text)}; };
  return {
      {{Kind::kJsonSchema, R"({"properties": {"z\"\\\n": {"const": "/\\"},
                  "a": {"type": "boolean"}}, "required": ["z\"\\\n", "a"]})"},  // in this order
       Matches(R"(\{"z\\"\\\\\\n": "/\\\\", "a": (true|false)\})")},
      regex("[a-f0-9]{4}(-[a-f0-9]{2})?"),
      regex("(ab|cd)+x?"),
      {{Kind::kGrammar, "root ::= x_before_x\nx_before_x ::= [0-9]{20,40} \".5\""},
       Matches("[0-9]{20,40}\\.5")},
      regex("\\d{3}\\.\\d"),
      regex("^a$|^b$"),
      {{Kind::kRegex, "a.[^b]"},
       [](const std::string& text) {
         std::u32string points;
         for (size_t at = 0; at < text.size();) {
           const Utf8Unit unit = NextUtf8(text.data() + at, text.size() - at);
           points += unit.code_point;
           at += unit.length;
         }
         return points.size() >= 3 && points[0] == U'a' && points[2] != U'b';
       }},
      {ChoiceGrammar({"yes", "no", "a \"quoted\" \\ one", "two\nlines", ":((("}),
       Matches(R"(yes|no|a "quoted" \\ one|two\nlines|:\(\(\()")},
      {{Kind::kGrammar, "root ::= sum\nsum ::= num (\"+\" num)*\nnum ::= [0-9]+ | \"(\" sum \")\""},
       [](const std::string& text) {
         return std::count(text.begin(), text.end(), '(') ==
                std::count(text.begin(), text.end(), ')');
       }},
  };
}

TEST(GrammarTest, AnyAnswerThatEndsIsValid) {
  for (const Row& row : Rows()) {
    const auto grammar = Compiler().Compile(row.source);
    ASSERT_TRUE(grammar.ok()) << row.source.text << ": " << grammar.status();
    int ended = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
      const std::optional<std::string> text = Walk(*grammar, seed);
      if (!text.has_value()) continue;
      ++ended;
      EXPECT_TRUE(row.is_valid(*text)) << row.source.text << " gave " << *text;
    }
    EXPECT_GE(ended, 30) << row.source.text;
  }
}

std::string StringSchema(int least, int most) {
  return absl::StrCat(R"({"type": "string", "minLength": )", least,
                      most < 0 ? "" : absl::StrCat(R"(, "maxLength": )", most), "}");
}

// The mask agrees with the schema for tokens of any length at any place.
TEST(GrammarTest, FollowsStringsOfBoundedLength) {
  std::vector<std::string> tokens = {"", "\"", "a", "\xe6\x97\xa5", "\n"};
  for (const int length : {2, 3, 15, 16, 17, 18, 31, 33, 63, 65, 70, 128, 130}) {
    for (const char* end : {"", "\"", "\"x"}) {
      tokens.push_back(std::string(static_cast<size_t>(length), 'a') + end);
    }
  }
  GrammarCompiler compiler([&] { return tokens; });
  const std::pair<int, int> kBounds[] = {{0, 1},   {2, 8},    {0, 16},    {16, 17},   {3, 17},
                                         {20, 30}, {33, 33},  {0, 64},    {40, 65},   {0, 200},
                                         {50, -1}, {150, -1}, {130, 140}, {200, 333}, {64, 130}};
  const char* const kAround[][2] = {
      {"", ""},      {"", "\"?"}, {"", "[\"1]"},     {"", "[01]*-?[\"]"}, {"(", "|bb)[01]?[\"]"},
      {"", "[b\"]"}, {"", ""},    {"(b|(", "|bb))?"}};
  for (uint32_t seed = 0; seed < 120; ++seed) {
    const auto& [least, most] = kBounds[seed % std::size(kBounds)];
    const auto& [before, behind] = kAround[seed % 8];
    const std::string regex = absl::StrCat(before, "\"[^\"\\n]{", least, ",",
                                           most < 0 ? "" : absl::StrCat(most), "}", behind);
    const GrammarSource sources[] = {{Kind::kJsonSchema, StringSchema(least, most)},
                                     {Kind::kRegex, regex}};
    SCOPED_TRACE(seed);
    const bool has_end = seed % 8 < 6;
    std::mt19937 random(seed);
    GrammarMatcher matcher(*compiler.Compile(sources[seed % 8 == 0 ? 0 : 1]), {kEnd});
    ASSERT_TRUE(matcher.Accept(1).ok());
    for (int length = 0; length < 400 && !matcher.must_end();) {
      std::vector<int32_t> allowed;
      for (int32_t id = 1; id < static_cast<int32_t>(tokens.size()); ++id) {
        const std::string& token = tokens[static_cast<size_t>(id)];
        const size_t quote = token.find('"');
        const int end = length + (id == 3 ? 1 : static_cast<int>(token.substr(0, quote).size()));
        const bool may =
            id != 4 && (most < 0 || end <= most) &&
            (quote == token.npos || (has_end && end >= least && quote + 1 == token.size()));
        ASSERT_EQ(Allows(matcher, id), may) << least << ", " << most << ": " << length << token;
        if (may) allowed.push_back(id);
      }
      // One character in three steps, so that each place near an end is seen.
      const int32_t id =
          length < most && random() % 3 == 0 ? 2 : allowed[random() % allowed.size()];
      length += id == 3 ? 1 : static_cast<int>(tokens[static_cast<size_t>(id)].size());
      ASSERT_TRUE(matcher.Accept(id).ok()) << matcher.status();
    }
  }
}

// The text behind counted characters may be optional or repeated. "aa" does not begin "abaa1".
TEST(GrammarTest, FollowsCharactersWithNoEndOfTheirOwn) {
  GrammarCompiler compiler([] { return std::vector<std::string>{"", "a1", "abaa1", "aa", "a-"}; });
  for (const char* regex : {"[a-z]{0,20}-?1", "[a-z]{0,20}[!-]?[01]", "[a-z]{0,20}-{00,2}1",
                            "[a-z]{0,20}[!-]{0,1}1", "([a-z]{0,20}-*[!-]*)?1", "([a-z]{0,20}|-)*1",
                            "(-1|[a-z]{0,20}|-)?1", "([a-z]{2,40}1|a1)-?", "a(ba+)?1"}) {
    const GrammarMatcher matcher(*compiler.Compile({Kind::kRegex, regex}), {kEnd});
    EXPECT_TRUE(Allows(matcher, 1) && Allows(matcher, 2)) << regex;
  }
}

// Counted characters stay within the work of a token and of a compilation.
TEST(GrammarTest, CountsCharactersAtALargeVocabulary) {
  GrammarCompiler compiler([] {
    std::vector<std::string> tokens = {"", "\"", "a"};
    std::mt19937 random(1);
    while (tokens.size() < 50000) {
      std::string& token = tokens.emplace_back(8, ' ');
      for (char& letter : token) letter = static_cast<char>('a' + random() % 26);
    }
    return tokens;
  });
  for (const GrammarSource& source : {GrammarSource{Kind::kJsonSchema, StringSchema(0, 8)},
                                      {Kind::kRegex, "\"[a-z]{1,2000}"},
                                      {Kind::kRegex, "\".{1,2000}-?[0-9]{2}"},
                                      {Kind::kRegex, "b|(\"(.{7,200}|b))"}}) {
    GrammarMatcher matcher(*compiler.Compile(source), {kEnd});
    for (const int32_t id : {1, 2, 2, 2, 2, 2, 2, 2, 2}) {
      ASSERT_TRUE(matcher.Accept(id).ok()) << source.text << matcher.status();
    }
  }
  std::string items = StringSchema(0, 12);
  for (int i = 1; i < 12; ++i) absl::StrAppend(&items, ", ", StringSchema(i % 3, 12 + 5 * i));
  items = absl::StrCat(R"({"anyOf": [)", items, "]}");
  EXPECT_EQ(compiler.Compile({Kind::kJsonSchema, items}).status(), absl::OkStatus());
}

GrammarSource Calls(bool required) {
  EbnfRules rules;
  const auto call = [&](const char* name, const char* schema) {
    return CallForm{absl::StrCat("<c>{", name, " "),
                    AddSchemaRules(schema, /*relax=*/false, &rules)->root, "}</c>"};
  };
  const std::vector<CallForm> calls = {
      call("f", R"({"type": "object", "properties": {"a": {"type": "boolean"}},
                    "additionalProperties": true, "required": ["a"]})"),
      call("g", R"({"enum": [1, 2]})")};
  return CallGrammar(calls, {"<c>", "\n", "", required, /*one_call=*/false}, &rules);
}

// A call is on one line, and text is free up to its first tag.
TEST(GrammarTest, CallsStandInTextOrAlone) {
  const auto accept = [](GrammarMatcher* matcher, const std::string& text) {
    for (const char c : text) {
      const int32_t id = 1 + static_cast<unsigned char>(c);
      if (!Allows(*matcher, id) || !matcher->Accept(id).ok()) return false;
    }
    return true;
  };
  struct Case {
    bool alone;
    const char* text;
    bool begins, ends;
  };
  const Case cases[] = {{true, "<c>{f {\"a\": true}}</c>\n<c>{g 2}</c>", true, true},
                        {true, "<c>{f {\"a\": true}}</c>\n", true, false},
                        {true, "<c>{f {\n", false, false},
                        {true, "", true, false},
                        {true, "a", false, false},
                        {true, "<c>{f {\"a\": true, \"b\": 1, \"c\": [], \"b\"", false, false},
                        {true, "<c>{f {\"a\": true, \"b\": {\"b\": 0}}}</c>", true, true},
                        {false, "", true, true},
                        {false, "a\xff <c", true, true},
                        {false, "a<c>{h", false, false},
                        {false, "a<c>{g 3", false, false},
                        {false, "a<c>{g ", true, false},
                        {false, "<<c>{g 1}</c> and <c>{f {\"a\": false}}</c>.", true, true}};
  for (const Case& c : cases) {
    GrammarMatcher matcher(*Compiler().Compile(Calls(c.alone)), {kEnd});
    EXPECT_EQ(accept(&matcher, c.text), c.begins) << c.text;
    EXPECT_EQ(c.begins && matcher.may_end(), c.ends) << c.text;
  }
}

TEST(GrammarTest, OnlyAddedTokensThatAreTagsAreInAnswers) {
  BpeDefinition definition = SmallDefinition();
  definition.added.push_back({.content = "<c>", .id = 259, .special = false, .file = "V"});
  definition.added.push_back({.content = "<d>", .id = 260, .special = false, .file = "V"});
  const auto tokenizer = *ByteLevelBpe::Create(definition, 261);
  const auto compiler = GrammarCompiler::Create(*tokenizer, 261, {}, "<c>{");
  const GrammarMatcher matcher(*compiler->Compile({Kind::kRegex, "(<c>|<d>)x?"}), {258});
  EXPECT_TRUE(Allows(matcher, '<') && Allows(matcher, 259));
  EXPECT_FALSE(Allows(matcher, 260) || Allows(matcher, 258));
}

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Refusals are one line and take bounded time and memory.
TEST(GrammarTest, RefusesHostileSources) {
  const std::pair<GrammarSource, const char*> kRows[] = {
      {{Kind::kRegex, "((((a{100}){100}){100}){100}){100}"}, "too large"},
      {{Kind::kRegex, "(a{1000000000})"}, "too many"},
      {{Kind::kRegex, "a{99999999999999999999}"}, ""},
      {{Kind::kRegex, "(a*)**"}, "nothing to repeat"},
      {{Kind::kRegex, "a^b|a$b"}, "^ is"},
      {{Kind::kRegex, absl::StrCat(Times(20'000, "("), "a", Times(20'000, ")"))}, "too large"},
      {{Kind::kRegex, "(?=a)b"}, "look-around"},
      {{Kind::kRegex, "a\\1"}, "escape"},
      {{Kind::kRegex, std::string("a\0b", 3)}, "NUL"},
      {{Kind::kRegex, Times(kMaxGrammarBytes + 1, "a")}, "bytes"},
      {{Kind::kGrammar, "root ::= nothing"}, ""},
      {{Kind::kGrammar, "start ::= \"a\""}, "root"},

      {{Kind::kJsonSchema, "{"}, "the schema"},
      {{Kind::kJsonSchema, Times(100, "{\"items\":") + "{}" + Times(100, "}")}, "the schema"},
      {{Kind::kJsonSchema, R"({"type": "array", "uniqueItems": true})"}, "uniqueItems"},
      {{Kind::kJsonSchema, R"({"oneOf": [{"type": "integer"}, {"enum": [2.0]}]})"}, "oneOf is"},
      {{Kind::kJsonSchema, R"({"oneOf": [{"type": "string"}, {"properties": {}}]})"}, "oneOf is"},
      {{Kind::kJsonSchema, R"({"oneOf": [
           {"type": "object", "required": ["k"], "properties": {"k": {"const": 1}}},
           {"type": "object", "properties": {"k": {"enum": [2, 1.0]}}}]})"},
       "oneOf is"},
      {{Kind::kJsonSchema, R"({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}],
                               "$defs": {"a": {"const": 1}}})"},
       "oneOf is"},
      {{Kind::kJsonSchema, absl::StrCat(R"({"oneOf": [)", Times(999, "{\"const\": 1},"), "{}]}")},
       "oneOf is"},
      {{Kind::kJsonSchema, R"({"$ref": "http://x/y"})"}, "$ref"},
      {{Kind::kJsonSchema, R"({"$ref": "#/$defs/none"})"}, ""},
      {{Kind::kJsonSchema, R"({"type": "string", "minLength": 1000000000})"}, "minLength"},
      {{Kind::kJsonSchema, R"({"type": "integer", "enum": ["a"]})"}, "enum"},
      {{Kind::kJsonSchema, R"({"type": "string", "pattern": "a", "maxLength": 3})"}, "maxLength"},
      {{Kind::kJsonSchema, R"({"type": "string", "pattern": "^a{3}$", "maxLength": 2})"}, "length"},
      {{Kind::kJsonSchema, R"({"type": "string", "pattern": "\\b"})"}, "pattern: this escape"},
      {{Kind::kJsonSchema, R"({"required": ["a"], "additionalProperties": false})"}, "required"},
      {{Kind::kJsonSchema, R"({"$ref": "#"})"}, "itself"},
      {{Kind::kJsonSchema, R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})"}, "itself"},
      {{Kind::kJsonSchema, R"({"type": "integer", "minimum": 9223372036854775808})"}, "too large"},
      {{Kind::kJsonSchema, R"({"const": 1e400})"}, "a number too large for a double"},
      {{Kind::kJsonSchema, R"({"$ref": "#/$defs/a", "$defs": {"b": {"const": 4},
                               "a": {"$id": "http://x/y", "$ref": "#/$defs/b"}}})"},
       "$id"},
      {{Kind::kJsonSchema, R"({"properties": {"a": {"not": {"type": "null"}}}})"}, "not"},
  };
  for (const auto& [source, says] : kRows) {
    const auto grammar = Compiler().Compile(source);
    const std::string name = source.text.substr(0, 80);
    ASSERT_FALSE(grammar.ok()) << name;
    EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << name;
    EXPECT_TRUE(absl::StrContains(grammar.status().message(), says)) << name << grammar.status();
    EXPECT_LT(grammar.status().message().size(), 1000U) << name;
    EXPECT_EQ(grammar.status().message().find('\n'), std::string::npos) << name;
  }
}

// Schemas whose answers could be values that the schemas do not have.
TEST(GrammarTest, RefusesWhatItCannotKeepApart) {
  const std::pair<const char*, const char*> kRows[] = {
      // {"z": 1} is of all three, although the first two would be written with k.
      {R"({"type": "object", "oneOf": [{"properties": {"k": {"const": 1}}},
          {"properties": {"k": {"const": 2}}}, {"properties": {"z": {}}, "required": ["z"]}]})",
       "oneOf is"},
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [
          {"required": ["a"]}, {"required": ["b"]}, {"required": ["a", "b"]}]})",
       "oneOf is"},
      // "s" is of both, below {"ab": 1}.
      {R"({"oneOf": [{"properties": {"a": {"const": 1}}, "enum": ["s"]},
          {"properties": {"a": {"const": 2}}}]})",
       "oneOf is"},
      {R"({"oneOf": [{"type": "object", "properties": {"ab": {"const": 1}}, "required": ["ab"]},
          {"type": "object", "patternProperties": {"^a": {"const": 1}},
           "additionalProperties": false}]})",
       "oneOf is"},
      {R"({"type": "object", "propertyNames": {"enum": ["b", "a"], "pattern": "^a"}})",
       "propertyNames is"},
  };
  for (const auto& [schema, says] : kRows) {
    const auto grammar = Compiler().Compile({Kind::kJsonSchema, schema});
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_TRUE(absl::StrContains(grammar.status().message(), says)) << schema << grammar.status();
  }
}

// A compiled grammar is bounded in bytes; following it is bounded in steps and in length, with an
// error.
TEST(GrammarTest, BoundsWhatItCompilesAndFollows) {
  std::string doubling = "root ::= r0\n", chain = doubling, values = R"({"enum": [)";
  for (int i = 0; i < 60; ++i) {
    absl::StrAppend(&doubling, "r", i, " ::= r", i + 1, " r", i + 1, "\n");
    absl::StrAppend(&values, i > 0 ? "," : "", "\"", Times(900, "ab"), i, "\"");
  }
  for (int i = 0; i < 2500; ++i) {
    absl::StrAppend(&chain, "r", i, " ::= \"a\" r", i + 1, " | \"b\"\n");
  }
  std::string optional = R"({"type": "object", "minProperties": 700, "maxProperties": 900)";
  for (int i = 0; i < 1500; ++i) {
    absl::StrAppend(&optional, i > 0 ? "," : R"(, "properties": {)", "\"p", i, "\": {}");
  }
  const GrammarSource sources[] = {
      {Kind::kGrammar, "root ::= root root | [a-z] | \"\""},
      {Kind::kGrammar, "root ::= a\na ::= a a a | [a-z ] | [a-f] | [a-k] a"},
      {Kind::kGrammar, doubling + "r60 ::= \"a\""},
      {Kind::kGrammar, chain + "r2500 ::= \"a\""},
      {Kind::kRegex, "(([a-z]|[a-z][a-z])*){2,120}"},
      {Kind::kRegex, "(.?){5000}"},
      {Kind::kRegex, Times(4000, "[a-z]x?.*")},
      {Kind::kJsonSchema, values + "]}"},
      {Kind::kJsonSchema, optional + "}}"},
      {Kind::kJsonSchema, R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})"},
  };
  int refused = 0, ended = 0;
  for (const GrammarSource& source : sources) {
    SCOPED_TRACE(source.text.substr(0, 80));
    const auto grammar = Compiler().Compile(source);
    if (!grammar.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << grammar.status();
      ++refused;
      continue;
    }
    EXPECT_LE((*grammar)->bytes(), 16 << 20);
    GrammarMatcher matcher(*grammar, {kEnd});
    for (int step = 0; step < 2000 && matcher.status().ok() && !matcher.must_end(); ++step) {
      int32_t id = 0;
      while (id == kEnd || !Allows(matcher, id)) ++id;
      matcher.Accept(id).IgnoreError();
    }
    if (matcher.status().ok()) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(matcher.status())) << matcher.status();
    ++ended;
  }
  EXPECT_GE(refused, 2);
  EXPECT_GE(ended, 3);
}

}  // namespace
}  // namespace fox
