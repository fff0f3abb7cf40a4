// Strings and numbers of JSON in grammars, against jsonschema and Python's json, whose verdicts are
// in json_strings.json (make_json_strings.py).
#include "models/grammar/json_pattern.h"

#include <fstream>
#include <regex>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/grammar/json_schema.h"
#include "models/grammar/work_meter.h"
#include "nlohmann/json.hpp"
#include "tests/models/grammar/byte_grammar.h"

namespace fox {
namespace {

using Json = nlohmann::json;
using Kind = GrammarSource::Kind;

std::string Written(const Json& text, int count) {
  std::string unit;
  if (text.is_string()) {
    unit = text.get<std::string>();
  } else {
    for (const int byte : text) unit += static_cast<char>(byte);
  }
  if (count == 0) return unit;
  std::string all = "\"";
  for (int i = 0; i < count; ++i) all += unit;
  return all + "\"";
}

TEST(JsonPatternTest, AcceptsTheTextsThatJsonschemaAccepts) {
  std::ifstream file(FOX_SOURCE_DIR "/tests/models/grammar/json_strings.json");
  const Json rows = Json::parse(file);
  int valid = 0, others = 0;
  for (const Json& row : rows) {
    const auto grammar = ByteCompiler().Compile({Kind::kJsonSchema, row[0].get<std::string>()});
    ASSERT_TRUE(grammar.ok()) << row[0] << grammar.status();
    for (const Json& said : row[1]) {
      SCOPED_TRACE(row[0].get<std::string>() + said.dump());
      EXPECT_EQ(Accepts(*grammar, Written(said[0], said[1])), said[2].get<bool>());
      ++(said[2].get<bool>() ? valid : others);
    }
  }
  EXPECT_GT(valid, 400);
  EXPECT_GT(others, 400);
}

// Without a limit a small model writes digits until its answer is cut; clients cannot read them.
TEST(JsonPatternTest, NumbersEnd) {
  const std::string digits(16, '9');
  for (const char* schema : {R"({"type": "number"})", R"({"type": "integer"})",
                             R"({"type": "integer", "minimum": 5})"}) {
    SCOPED_TRACE(schema);
    const auto grammar = *ByteCompiler().Compile({Kind::kJsonSchema, schema});
    EXPECT_TRUE(Accepts(grammar, digits));
    EXPECT_FALSE(Accepts(grammar, digits + "9"));
  }
  const auto number = *ByteCompiler().Compile({Kind::kJsonSchema, R"({"type": "number"})"});
  EXPECT_TRUE(Accepts(number, digits + "." + digits + "e289"));
  EXPECT_FALSE(Accepts(number, digits + "." + digits + "9"));
  EXPECT_FALSE(Accepts(number, "1e290") || Accepts(number, "1e1000") || Accepts(number, "1e0001"));
}

TEST(JsonPatternTest, IntegersKeepToTheirRange) {
  const std::vector<std::pair<int, int>> kRanges = {
      {0, 0}, {3, 120}, {-7, 13}, {-200, -19}, {99, 101}, {10, 1000}, {-1, 0}, {1, 7}, {555, 555}};
  for (const auto& [first, last] : kRanges) {
    const std::regex both(IntegerPattern(first, last)), from(IntegerPattern(first, {})),
        to(IntegerPattern({}, last));
    for (int i = -2500; i <= 2500; ++i) {
      const std::string text = absl::StrCat(i);
      EXPECT_EQ(std::regex_match(text, both), i >= first && i <= last) << i << " " << first;
      EXPECT_EQ(std::regex_match(text, from), i >= first) << i << " from " << first;
      EXPECT_EQ(std::regex_match(text, to), i <= last) << i << " to " << last;
    }
  }
  EXPECT_TRUE(std::regex_match("-9223372036854775808", std::regex(IntegerPattern(INT64_MIN, -5))));
}

// zod 4's z.int() has the bounds of 53 bits; a tool may have many such parameters.
TEST(JsonPatternTest, IntegersOfManyDigitsTakeLittleOfASchemasWork) {
  constexpr int kIntegersOfASchema = 200;
  const std::pair<std::string, std::string> bounds[] = {
      {"-9007199254740991", "9007199254740991"},
      {"-9223372036854775808", "9223372036854775807"},
      {"-1111111111111111", "1111111111111111"},
      {"123456789012345678", "987654321098765432"}};
  for (const auto& [first, last] : bounds) {
    const std::string schema =
        absl::StrCat(R"({"type": "integer", "minimum": )", first, R"(, "maximum": )", last, "}");
    const WorkMeter meter(kSchemaSteps);
    EbnfRules rules;
    ASSERT_TRUE(AddSchemaRules(schema, /*relax=*/false, &rules).ok()) << schema;
    EXPECT_LT(meter.spent(), kSchemaSteps / kIntegersOfASchema) << schema;
  }
}

TEST(JsonPatternTest, UnknownAndLargePatternsAreRefused) {
  const std::string large = R"({"type": "string", "pattern": ")" + std::string(30'000, '.') + "\"}";
  EXPECT_FALSE(ByteCompiler().Compile({Kind::kJsonSchema, large}).ok());
  for (const char* pattern :
       {R"(\\p{L})", R"(a\\b)", R"(\\1)", "[z-a]", "[a", R"(\\u00)", "(?=a)b"}) {
    const std::string schema = std::string(R"({"type": "string", "pattern": ")") + pattern + "\"}";
    EXPECT_FALSE(ByteCompiler().Compile({Kind::kJsonSchema, schema}).ok()) << pattern;
  }
}

}  // namespace
}  // namespace fox
