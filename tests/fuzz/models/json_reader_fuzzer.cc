// ReadJson against the library's own parser: the value is the same, and refusals are due to a
// limit, a repeated key or a NUL. The first three bytes choose the limits.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoint/json_reader.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

using Json = nlohmann::json;

// Records the values, keys and depth that the library sees while it parses a document.
struct Reference {
  Json value;
  size_t depth = 0, values = 0;
  bool repeated_key = false;
};

Reference Read(const std::string& text) {
  Reference out;
  std::vector<std::set<std::string>> keys;  // of the open containers
  const auto see = [&](int, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        ++out.values;
        keys.emplace_back();
        out.depth = std::max(out.depth, keys.size());
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second) out.repeated_key = true;
        break;
      default:
        ++out.values;
    }
    return true;
  };
  out.value = Json::parse(text, see, /*allow_exceptions=*/false);
  return out;
}

}  // namespace

FUZZ_TEST(json_reader) {
  const JsonLimits limits{.max_bytes = 16 * (1 + in.Below(256)),
                          .max_depth = in.Below(24),
                          .max_values = in.Below(256)};
  const std::string text = in.Rest();
  const absl::StatusOr<Json> json = ReadJson(text, limits, "a file");
  const Reference expected = Read(text);
  const bool right = !expected.value.is_discarded() && !expected.repeated_key &&
                     text.find('\0') == std::string::npos && text.size() <= limits.max_bytes &&
                     expected.depth <= limits.max_depth && expected.values <= limits.max_values;
  FOX_CHECK(json.ok() == right);
  if (!json.ok()) return CheckRefusal(json.status());
  FOX_CHECK(*json == expected.value);
  const absl::StatusOr<Json> again = ReadJson(json->dump(), {1 << 20, 24, 256}, "what was written");
  FOX_CHECK(again.ok() && *again == *json);
}

}  // namespace fox
