// JSON as text: parts have the values that nlohmann_json reads, and numbers keep their digits.
#include "models/checkpoint/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "nlohmann/json.hpp"

namespace fox {
namespace {

using Ordered = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// RFC 8259, section 13.
constexpr char kImage[] = R"({
        "Image": {
            "Width":  800,
            "Height": 600,
            "Title":  "View from 15th Floor",
            "Thumbnail": {
                "Url":    "http://www.example.com/image/481989943",
                "Height": 125,
                "Width":  100
            },
            "Animated" : false,
            "IDs": [116, 943, 234, 38793]
          }
      })";
constexpr char kPlaces[] = R"([
        { "precision": "zip", "Latitude":  37.7668, "Longitude": -122.3959, "Address": "",
          "City": "SAN FRANCISCO", "State": "CA", "Zip": "94107", "Country": "US" },
        { "precision": "zip", "Latitude":  37.371991, "Longitude": -122.026020, "Address": "",
          "City": "SUNNYVALE", "State": "CA", "Zip": "94085", "Country": "US" } ])";

TEST(JsonTextTest, ADocumentStaysTheSame) {
  for (const std::string text :
       {kImage, kPlaces, "\"Hello world!\"", "42", "true", "[]", "{}", " [ [ ] , { } , null ] ",
        R"({"":{"":[]},"a\u0022b\\":"\ud83e\udd8a\/\u0001","x,y:{}[]":":,"})"}) {
    SCOPED_TRACE(text);
    const Ordered document = Ordered::parse(text);
    EXPECT_EQ(Ordered::parse(Respaced(text, JsonSpacing::kPython)), document);
    EXPECT_EQ(Ordered::parse(Respaced(text, JsonSpacing::kNone)), document);
  }
}

// The right side is what Python's json.dumps(json.loads(text), ensure_ascii=False) prints, beside
// numbers that Python writes in another way.
TEST(JsonTextTest, NumbersKeepTheirDigitsAndStringsHaveNoNeedlessEscape) {
  const std::pair<const char*, const char*> cases[] = {
      {"[9007199254740993,18446744073709551615 , -9223372036854775809]",
       "[9007199254740993, 18446744073709551615, -9223372036854775809]"},
      {"{\"a\":25000000000000000001,\"b\":0.1}", "{\"a\": 25000000000000000001, \"b\": 0.1}"},
      {"[1.0,1e5,-0.10,1E-7]", "[1.0, 1e5, -0.10, 1E-7]"},
      {R"(["\u00e9\/\"\\\n\u001f"])", R"(["é/\"\\\n\u001f"])"},
      {"\xef\xbb\xbf{}", "{}"},
  };
  for (const auto& [text, python] : cases) {
    EXPECT_EQ(Respaced(text, JsonSpacing::kPython), python);
  }
}

TEST(JsonTextTest, PartsAreFoundByTheirNames) {
  EXPECT_EQ(JsonAt(kImage, {"Image", "Thumbnail", "Width"}), "100");
  EXPECT_EQ(JsonAt(kImage, {"Image", "IDs"}), "[116, 943, 234, 38793]");
  EXPECT_EQ(JsonAt(R"({"a":"}","b\u0063":[{"x":1}] })", {"bc"}), R"([{"x":1}])");
  EXPECT_EQ(JsonAt("{\"a\" : 1 }", {"b"}), "");
  EXPECT_EQ(JsonAt("[1]", {"a"}), "");
  EXPECT_EQ(JsonAt("{}", {"a", "b"}), "");
  EXPECT_EQ(JsonAt("5", {}), "5");
  EXPECT_THAT(JsonElements(" [ 1,\"]\", [2, 3] ,{\"a\":[]}]"),
              ElementsAre("1", "\"]\"", "[2, 3]", "{\"a\":[]}"));
  EXPECT_THAT(JsonElements("[ ]"), IsEmpty());
  EXPECT_THAT(JsonElements("{}"), IsEmpty());
  EXPECT_EQ(JsonAt(JsonElements(kPlaces)[1], {"Latitude"}), "37.371991");
}

}  // namespace
}  // namespace fox
