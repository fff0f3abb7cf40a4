// Merging keyword by keyword. See schema_merge.h.
#include "models/grammar/schema_merge.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/grammar/work_meter.h"

namespace fox {
namespace {

using Json = ExactJson;

// Equality of JSON Schema: numbers by their values, objects without the order of their members.
bool IsSame(const Json& a, const Json& b) {
  SpendWork(1);
  if (a.is_object() != b.is_object() || a.is_array() != b.is_array() || a.size() != b.size()) {
    return false;
  }
  if (a.is_object()) {
    return std::all_of(a.items().begin(), a.items().end(), [&](const auto& member) {
      return b.contains(member.key()) && IsSame(member.value(), b[member.key()]);
    });
  }
  if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), IsSame);
  return a == b || NumberOf(a) == NumberOf(b);
}

bool Contains(const Json& list, const Json& value) {
  return std::any_of(list.begin(), list.end(), [&](const Json& one) { return IsSame(one, value); });
}

Json Types(const Json& a, const Json& b) {
  Json out = Json::array();
  for (const Json& type : a) {
    if (Contains(b, type) || (type == "integer" && Contains(b, "number"))) out.push_back(type);
  }
  if (Contains(a, "number") && Contains(b, "integer") && !Contains(out, "integer")) {
    out.push_back("integer");
  }
  if (out.empty()) throw NoValue("no type is of both schemas");
  return out;
}

Json Values(const Json& a, const Json& b) {
  Json out = Json::array();
  for (const Json& value : a) {
    if (Contains(b, value)) out.push_back(value);
  }
  if (out.empty()) throw NoValue("no value is in both lists");
  return out;
}

// The schema of both for one property or item. Unlike their parents, `a` and `b` need not be plain:
// the result combines them by allOf, which is merged later.
Json Both(const Json& a, const Json& b) {
  if (a == b || b == true) return a;
  if (a == true) return b;
  if (a == false || b == false) return false;
  return {{"allOf", Json::array({a, b})}};
}

// Adds the properties that `from` names to `properties`, each merged with the schema that `other`
// has for it: its own property of that name, or else its additionalProperties.
void AddNames(const Json& from, const Json& other, Json* properties) {
  const bool is_open = !other.contains("additionalProperties");
  for (const auto& [name, value] : At(from, "properties").items()) {
    SpendWork(static_cast<int64_t>(1 + properties->size()));
    const Json& others = At(other, "properties");
    const Json& there = others.contains(name) ? others[name] : At(other, "additionalProperties");
    if (!properties->contains(name)) {
      (*properties)[name] = is_open && !others.contains(name) ? value : Both(value, there);
    }
  }
}

bool IsBound(const std::string& word, const char* least, const char* most) {
  return word.starts_with(least) || word.starts_with(most);
}

Json Joined(const std::string& word, const Json& a, const Json& b) {
  if (a == b) return a;
  if (word == "type") return Types(a, b);
  if (word == "enum") return Values(a, b);
  if (word == "additionalProperties" || word == "propertyNames") return Both(a, b);
  if (IsBound(word, "min", "exclusiveMin")) return NumberOf(a) < NumberOf(b) ? b : a;
  if (IsBound(word, "max", "exclusiveMax")) return NumberOf(a) < NumberOf(b) ? a : b;
  if (word == "required" || word == "allOf") {
    Json out = a;
    for (const Json& one : b) {
      if (!Contains(out, one)) out.push_back(one);
    }
    return out;
  }
  throw std::runtime_error(absl::StrCat(word, " is not supported in two schemas of one value"));
}

// Throws if both schemas use keywords that refer to each other, as `items` does to `prefixItems`,
// and differ in one: such keywords cannot be merged one by one.
void CheckApart(const Json& a, const Json& b) {
  for (const auto& words : {std::vector<const char*>{"items", "prefixItems"},
                            {"unevaluatedItems", "items", "prefixItems", "anyOf", "oneOf"},
                            {"patternProperties", "properties", "additionalProperties"},
                            {"unevaluatedProperties", "properties", "additionalProperties",
                             "patternProperties", "anyOf", "oneOf"}}) {
    const auto holds = [&](const Json& schema) {
      return std::any_of(words.begin(), words.end(),
                         [&](const char* word) { return schema.contains(word); });
    };
    const bool is_first = words.front() == std::string("items") || a.contains(words.front()) ||
                          b.contains(words.front());
    const bool differ = std::any_of(words.begin(), words.end(),
                                    [&](const char* word) { return At(a, word) != At(b, word); });
    if (is_first && differ && holds(a) && holds(b)) {
      throw std::runtime_error(
          absl::StrCat(words.front(), " is not supported in two schemas of one value"));
    }
  }
}

}  // namespace

const Json& At(const Json& schema, const std::string& keyword) {
  static const Json kNull;
  const auto found = schema.find(keyword);
  return found == schema.end() ? kNull : *found;
}

bool IsOfType(const Json& value, const Json& schema) {
  const Json& types = At(schema, "type");
  const double number = NumberOf(value);
  return types.is_null() || std::any_of(types.begin(), types.end(), [&](const Json& type) {
           return (type == "number" && !std::isnan(number)) ||
                  (type == "integer" && std::floor(number) == number && !std::isinf(number)) ||
                  (!value.is_binary() && type == value.type_name());
         });
}

Json Merged(const Json& a, const Json& b) {
  CheckApart(a, b);
  Json out = a, properties = Json::object();
  AddNames(a, b, &properties);
  AddNames(b, a, &properties);
  for (const auto& [word, value] : b.items()) {
    SpendWork(1);
    if (word == "properties") continue;
    const auto there = out.find(word);
    if (there == out.end()) {
      out[word] = value;
    } else {
      *there = Joined(word, *there, value);
    }
  }
  if (!properties.empty()) out["properties"] = std::move(properties);
  return out;
}

bool AreDisjoint(const Json& a, const Json& b) {
  const Json &values = At(a, "enum"), &others = At(b, "enum");
  if (values.is_array()) {
    return std::none_of(values.begin(), values.end(), [&](const Json& value) {
      return IsOfType(value, b) && (others.is_null() || Contains(others, value));
    });
  }
  if (others.is_array()) return AreDisjoint(b, a);
  const Json &types = At(a, "type"), &more = At(b, "type");
  if (types.is_null() || more.is_null()) return false;
  return std::none_of(types.begin(), types.end(), [&](const Json& type) {
    return Contains(more, type) || (type == "integer" && Contains(more, "number")) ||
           (type == "number" && Contains(more, "integer"));
  });
}

}  // namespace fox
