// JsonFields: types, ranges, absent fields, and malicious JSON.
#include "server/http/openai/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace fox {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JsonFieldsTest, ValuesOfTheirTypesAndNoneWhereNoneIsSet) {
  const Json object = {{"b", true},      {"i", -3},         {"f", 2},
                       {"s", "x"},       {"l", {"x", "y"}}, {"d", {0, 4294967295}},
                       {"null", nullptr}};
  JsonFields fields(object);
  EXPECT_EQ(fields.Bool("b"), true);
  EXPECT_EQ(fields.Int("i", -3, 5), -3);
  EXPECT_EQ(fields.Float("f"), 2.0f);
  EXPECT_EQ(fields.String("s"), "x");
  EXPECT_THAT(fields.Strings("s", 0), ElementsAre("x"));
  EXPECT_THAT(fields.Strings("l", 2), ElementsAre("x", "y"));
  EXPECT_THAT(fields.Ids("d"), ElementsAre(0u, 4294967295u));
  // JSON Schema's integers, whatever their notation; 2^53 is the last that a double tells apart.
  absl::StatusOr<JsonFields> sent = JsonFields::Parse(
      R"({"a": 4.0, "b": 1e3, "c": -0.0, "d": 9007199254740992.0, "e": [7.0, 4294967295.0]})");
  EXPECT_EQ(sent->Int("a", 0, 5), 4);
  EXPECT_EQ(sent->Int("b", 0, 1000), 1000);
  EXPECT_EQ(sent->Int("c", 0, 0), 0);
  EXPECT_EQ(sent->Int("d", 0, INT64_MAX), int64_t{1} << 53);
  EXPECT_THAT(sent->Ids("e"), ElementsAre(7u, 4294967295u));
  EXPECT_TRUE(sent->status().ok()) << sent->status();
  for (const char* name : {"null", "absent"}) {
    SCOPED_TRACE(name);
    EXPECT_FALSE(fields.Bool(name).has_value() || fields.Int(name, 0, 1).has_value());
    EXPECT_FALSE(fields.Float(name).has_value() || fields.String(name).has_value());
    EXPECT_TRUE(fields.Strings(name, 9).empty() && fields.Ids(name).empty());
  }
  EXPECT_TRUE(fields.status().ok());
  EXPECT_TRUE(fields.Strings("l", 1).empty());  // long lists are not copied
  EXPECT_EQ(fields.status().message(), "l: must be a string or a list of at most 1 strings");
  EXPECT_FALSE(fields.Int("b", 0, 5).has_value());  // the first error stays
  EXPECT_THAT(std::string(fields.status().message()), HasSubstr("l: "));
}

TEST(JsonFieldsTest, OtherTypesAreErrorsThatNameTheField) {
  const Json wrong[] = {1.5,
                        11.0,
                        "1",
                        Json::array({1, "x"}),
                        Json::object(),
                        1e300,
                        std::numeric_limits<uint64_t>::max()};
  for (const Json& value : wrong) {
    SCOPED_TRACE(value);
    const Json object = {{"name", value}};
    JsonFields fields(object), ids(object);
    EXPECT_FALSE(fields.Int("name", -10, 10).has_value()) << value;
    EXPECT_THAT(std::string(fields.status().message()), HasSubstr("name: must be an integer"));
    EXPECT_FALSE(JsonFields(object).Bool("name").has_value());
    ids.Ids("name");
    EXPECT_FALSE(ids.status().ok()) << value;
  }
  EXPECT_EQ(ToFloat(Json(1e300)), std::numeric_limits<float>::max());
  EXPECT_EQ(ToFloat(Json(-1e300)), -std::numeric_limits<float>::max());
}

TEST(JsonFieldsTest, OnlyObjectsOfABoundedDepth) {
  EXPECT_TRUE(JsonFields::Parse("{\"a\": [[1]]}").ok());
  for (const std::string& body :
       {std::string("[]"), std::string(), std::string("{"), std::string("{} {}"),
        std::string("{\"a\": NaN}"), std::string("{\"a\": 1, \"a\": 2}"), std::string("{}\0x", 4),
        "{\"a\": " + std::string(1 << 20, '['), std::string("{\"a\": \"\xff\"}")}) {
    EXPECT_FALSE(JsonFields::Parse(body).ok()) << body.substr(0, 20);
  }
}

}  // namespace
}  // namespace fox
