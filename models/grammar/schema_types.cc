// The rules of values, type by type. See schema_writer.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"
#include "models/grammar/json_pattern.h"
#include "models/grammar/regex.h"
#include "models/grammar/schema_merge.h"
#include "models/grammar/schema_writer.h"
#include "models/grammar/string_format.h"
#include "models/grammar/work_meter.h"

namespace fox {
namespace {

using Json = ExactJson;

constexpr int64_t kNoEnd = -1;

std::string InQuotes(const std::string& body) { return absl::StrCat(R"("\"" )", body, R"( "\"")"); }

std::string Rule(const std::string& regex) { return RegexInEbnf(regex, RegexPlace::kAnswer).body; }

// The count that a keyword gives, as maxItems, kMaxCount at most; kNoEnd: the schema lacks the
// keyword.
int64_t CountOf(const Json& schema, const char* keyword) {
  if (!schema.contains(keyword)) return kNoEnd;
  return static_cast<int64_t>(std::min(NumberOf(schema[keyword]), kMaxCount));
}

// The keyword about properties or items that a schema does not name.
const char* OthersWord(const Json& schema, const char* additional, const char* unevaluated) {
  return schema.contains(additional) || !schema.contains(unevaluated) ? additional : unevaluated;
}
const char* OtherProperties(const Json& schema) {
  return OthersWord(schema, "additionalProperties", "unevaluatedProperties");
}

std::string Times(int64_t least, int64_t most) {
  FOX_CHECK(least >= 0 && (most == kNoEnd || least <= most));
  return absl::StrCat("{", least, ",", most == kNoEnd ? "" : absl::StrCat(most), "}");
}

// From `least` to `most` repetitions of `part` with commas between them, inside of brackets.
std::string Sequence(const std::string& part, int64_t least, int64_t most, const char* begin,
                     const char* end) {
  std::string none = EbnfText(absl::StrCat(begin, end));
  if (most == 0) return none;
  const std::string more =
      Times(std::max<int64_t>(least - 1, 0), most == kNoEnd ? kNoEnd : most - 1);
  return absl::StrCat(EbnfText(begin), " ", part, " (\", \" ", part, ")", more, " ", EbnfText(end),
                      least == 0 ? absl::StrCat(" | ", none) : "");
}

// Keywords that restrict values of the type of `value`, but that Enum does not apply to it.
std::vector<std::string> UncheckedWords(const Json& value) {
  if (value.is_string()) return {"pattern"};
  return value.is_structured() ? WordsOf(value.type_name()) : std::vector<std::string>();
}

// Characters of a text; 0 for any other value.
int64_t LengthOf(const Json& value) {
  const auto* text = value.get_ptr<const std::string*>();
  return text == nullptr ? 0 : std::count_if(text->begin(), text->end(), [](char c) {
    return (c & 0xc0) != 0x80;  // not the rest of a UTF-8 character
  });
}

}  // namespace

std::string SchemaWriter::Enum(const Json& whole, const std::string& path) {
  std::set<std::string> seen;
  std::vector<std::string> ways;
  const auto bound = [&](const char* word) { return NumberOf(At(whole, word)); };  // NaN: none
  for (const Json& value : whole["enum"]) {
    const double number = NumberOf(value);
    if (!IsOfType(value, whole) || number < bound("minimum") || number > bound("maximum") ||
        number <= bound("exclusiveMinimum") || number >= bound("exclusiveMaximum") ||
        (value.is_string() && (static_cast<double>(LengthOf(value)) < bound("minLength") ||
                               static_cast<double>(LengthOf(value)) > bound("maxLength")))) {
      continue;
    }
    std::string text = TextOf(value, true);
    if (seen.insert(text).second) ways.push_back(EbnfText(text));
    SpendWork(static_cast<int64_t>(8 + text.size()));
    for (const std::string& word : UncheckedWords(value)) {
      if (whole.contains(word)) Drop(path, word);
    }
    if (value.is_string() && whole.contains("format")) List(path, "format");
  }
  if (ways.empty()) throw NoValue(absl::StrCat(path, ": no value of enum or const may be there"));
  return absl::StrJoin(ways, " | ");
}

std::string SchemaWriter::Types(const Json& whole, const std::string& path) {
  std::vector<std::string> types, ways;
  const Json& listed = At(whole, "type");
  const bool has_number = std::find(listed.begin(), listed.end(), "number") != listed.end();
  for (const Json& type : listed) {
    if (type != "integer" || !has_number) types.push_back(type.get<std::string>());
  }
  if (types.empty() && whole.empty()) return rules_.Any();
  if (types.empty()) {  // without `type`: the first of these types that it has keywords about
    const auto has = [&](const char* type) {
      const std::vector<std::string> words = WordsOf(type);
      return std::any_of(words.begin(), words.end(),
                         [&](const std::string& word) { return whole.contains(word); });
    };
    types.emplace_back(has("object")   ? "object"
                       : has("array")  ? "array"
                       : has("number") ? "number"
                                       : "string");
  }
  std::string none;
  for (const std::string& type : types) {
    try {
      ways.push_back(OfType(type, whole, path));
    } catch (const NoValue& error) {
      none = error.what();
    }
  }
  if (ways.empty()) throw NoValue(none);
  return absl::StrJoin(ways, " | ");
}

std::string SchemaWriter::OfType(const std::string& type, const Json& whole,
                                 const std::string& path) {
  if (type == "null") return "\"null\"";
  if (type == "boolean") return "\"true\" | \"false\"";
  if (type == "object" || type == "array") {
    ++level_;
    const auto leave = absl::MakeCleanup([this] { --level_; });
    return type == "object" ? Object(whole, path) : Array(whole, path);
  }
  if (type == "string") return String(whole, path);
  if (type == "integer") return Integer(whole, path);
  return Number(whole, path);
}

std::string SchemaWriter::Number(const Json& whole, const std::string& path) {
  // The stricter one of two bounds.
  const auto bound = [&](const char* word, const char* excluding, int sign) {
    std::optional<NumberBound> out;
    if (whole.contains(word)) out = {NumberOf(whole[word]), false};
    if (whole.contains(excluding)) {
      const double value = NumberOf(whole[excluding]);
      if (!out || sign * value >= sign * out->value) out = {value, true};
    }
    return out;
  };
  const auto least = bound("minimum", "exclusiveMinimum", 1);
  const auto most = bound("maximum", "exclusiveMaximum", -1);
  if (!least && !most) return rules_.Number();
  std::string range;
  try {
    if (!least || !most || least->value <= most->value) range = NumberPattern(least, most);
  } catch (const std::runtime_error& error) {
    for (const std::string& word : WordsOf("number")) {
      if (whole.contains(word)) Drop(path, word);
    }
    return rules_.Number();
  }
  if (range.empty()) throw NoValue(absl::StrCat(path, ": no such number"));
  return rules_.Add(NumberInEbnf(range));
}

// A string is written by its pattern; or by its format, if all texts of the format have the allowed
// lengths; or by its lengths.
std::string SchemaWriter::String(const Json& whole, const std::string& path) {
  const int64_t least = std::max<int64_t>(CountOf(whole, "minLength"), 0);
  const int64_t most = CountOf(whole, "maxLength");
  if (most != kNoEnd && least > most) throw NoValue(absl::StrCat(path, ": no such length"));
  const RegexPlace place = in_name_ ? RegexPlace::kName : RegexPlace::kString;
  RegexRule pattern;
  if (whole.contains("pattern")) {
    try {
      pattern = RegexInEbnf(whole["pattern"].get<std::string>(), place, {least, most});
    } catch (const std::runtime_error& error) {
      if (!relax_) Fail(path, absl::StrCat("pattern: ", error.what()));
      Drop(path, "pattern");
    }
  }
  const std::string name = whole.value("format", "");
  const StringFormat* const format = FindStringFormat(name);
  const bool fits = format != nullptr && !format->regex.empty() && format->least >= least &&
                    (most == kNoEnd || (format->most >= 0 && format->most <= most));
  const bool has_lengths = least > 0 || most != kNoEnd;
  if (fits && pattern.body.empty()) return InQuotes(Rule(format->regex));
  // A format is an annotation (validation, 7.2.1), never a reason to refuse a schema.
  if (format != nullptr) List(path, "format");
  if (pattern.body.empty()) {
    if (!has_lengths) return in_name_ ? rules_.Name({}) : rules_.String();
    return InQuotes(absl::StrCat(in_name_ ? RegexInEbnf("^[^]$", place).body : JsonCharacter(),
                                 Times(least, most)));
  }
  const auto& [shortest, longest] = pattern.lengths;
  if ((most != kNoEnd && shortest > most) || (longest >= 0 && longest < least)) {
    throw NoValue(absl::StrCat(path, ": no such length"));
  }
  if (shortest < least) Drop(path, "minLength");
  if (most != kNoEnd && (longest < 0 || longest > most)) Drop(path, "maxLength");
  return InQuotes(pattern.body);
}

std::string SchemaWriter::Integer(const Json& whole, const std::string& path) {
  // The bound `word` as an integer of 64 bits: rounded up if `nudge` is positive and else down, and
  // clamped where that excludes no such integer. No value: no bound.
  const auto bound = [&](const char* word, double nudge) -> std::optional<int64_t> {
    const Json& value = At(whole, word);
    if (value.is_null()) return {};
    const double number = NumberOf(value);
    const double edge = nudge > 0 ? std::ceil(number) : std::floor(number);
    const bool is_above =
        value.is_number_unsigned() ? value.get<uint64_t>() > INT64_MAX : edge >= 0x1p63;
    if (is_above) return nudge > 0 ? throw NoValue("the bound is too large") : INT64_MAX;
    if (edge < -0x1p63) return nudge < 0 ? throw NoValue("the bound is too small") : INT64_MIN;
    return value.is_number_integer() ? value.get<int64_t>() : static_cast<int64_t>(edge);
  };
  std::optional<int64_t> first = bound("minimum", 1), last = bound("maximum", -1);
  if (const auto above = bound("exclusiveMinimum", -1)) {
    if (*above == INT64_MAX) throw NoValue("the bound is too large");
    first = std::max(first.value_or(INT64_MIN), *above + 1);
  }
  if (const auto below = bound("exclusiveMaximum", 1)) {
    if (*below == INT64_MIN) throw NoValue("the bound is too small");
    last = std::min(last.value_or(INT64_MAX), *below - 1);
  }
  if (first && last && *first > *last) throw NoValue(absl::StrCat(path, ": no such integer"));
  if (!first && !last) return rules_.Integer();
  return rules_.Add(NumberInEbnf(IntegerPattern(first, last)));
}

std::string SchemaWriter::Array(const Json& whole, const std::string& path) {
  const int64_t least = std::max<int64_t>(CountOf(whole, "minItems"), 0);
  int64_t most = CountOf(whole, "maxItems");
  std::vector<std::string> first;
  const Json& prefix = At(whole, "prefixItems");
  const char* const word = OthersWord(whole, "items", "unevaluatedItems");
  std::string other;
  try {
    for (size_t i = 0; i < prefix.size(); ++i) {
      first.push_back(Write(prefix[i], absl::StrCat(path, "/prefixItems/", i)));
    }
    if (whole.contains(word)) {
      other = Write(whole[word], PathTo(path, word));
    } else if (first.empty() || least > static_cast<int64_t>(first.size())) {
      other = rules_.Any();
    }
  } catch (const NoValue&) {  // no item can be at this place, nor behind it
  }
  const auto count = static_cast<int64_t>(first.size());
  if (other.empty()) most = most == kNoEnd ? count : std::min(most, count);
  if (most != kNoEnd && least > most)
    throw NoValue(absl::StrCat(path, ": too few items may be there"));
  if (first.empty()) return Sequence(other, least, most, "[", "]");
  if (most == 0) return "\"[]\"";
  // Built from the last item to the first; each optional item holds all items behind it, because
  // they cannot be there without it.
  std::string rest;
  if (!other.empty() && (most == kNoEnd || most > count)) {
    rest = absl::StrCat(
        " (\", \" ", other, ")",
        Times(std::max<int64_t>(least - count, 0), most == kNoEnd ? kNoEnd : most - count));
  }
  for (int64_t i = std::min(count, most == kNoEnd ? count : most) - 1; i > 0; --i) {
    rest = absl::StrCat("\", \" ", first[static_cast<size_t>(i)], rest);
    rest = i < least ? absl::StrCat(" ", rest) : absl::StrCat(" (", rest, ")?");
    SpendWork(static_cast<int64_t>(rest.size()));
  }
  return absl::StrCat("\"[\" ", first[0], rest, " \"]\"", least == 0 ? " | \"[]\"" : "");
}

// --- Objects ---

std::string SchemaWriter::WriteName(const Json& schema, const std::string& path) {
  in_name_ = true;
  const auto leave = absl::MakeCleanup([this] { in_name_ = false; });
  return Write(schema, path);
}

void SchemaWriter::ReadProperties(const Json& whole, const std::string& path, Properties* out) {
  const Json &properties = At(whole, "properties"), &required = At(whole, "required");
  std::set<std::string> needed;
  for (const Json& name : required) needed.insert(name.get<std::string>());
  for (const auto& [name, schema] : properties.items()) {
    const bool is_needed = needed.erase(name) > 0;
    if (!is_needed) out->taken.insert(name);
    try {
      std::string value = Write(schema, PathTo(absl::StrCat(path, "/properties"), name));
      out->named.push_back({name, std::move(value), is_needed});
    } catch (const NoValue&) {
      if (is_needed) throw;
    }
  }
  for (const Json& json : required) {  // names that are not in `properties`
    const std::string name = json.get<std::string>();
    if (needed.erase(name) == 0) continue;
    if (whole.contains(OtherProperties(whole)) && out->other_value.empty()) {
      throw NoValue(absl::StrCat(path, ": a name is required that may not be there"));
    }
    std::string value = out->other_value.empty() ? rules_.Any() : out->other_value;
    out->named.push_back({name, std::move(value), true});
  }
}

void SchemaWriter::ReadNames(const Json& whole, const std::string& path, Properties* out) {
  const Json& schema = At(whole, "propertyNames");
  if (schema.is_null()) return;
  const Json names = Merge(Whole(schema, PathTo(path, "propertyNames")),
                           {{"type", Json::array({"string"})}}, path, "propertyNames");
  const bool is_list = names.contains("enum");
  if (names.size() == 1) return;                                     // any text
  if (!out->other_name.empty()) return Drop(path, "propertyNames");  // beside patternProperties
  if (!is_list && names.contains("type") && out->named.empty() && out->taken.empty() &&
      !names.contains("anyOf")) {
    out->other_name = WriteName(names, PathTo(path, "propertyNames"));
    return;
  }
  if (!is_list || names.size() > 2) return Drop(path, "propertyNames");
  std::set<std::string> listed;
  for (const Json& name : names["enum"]) {
    if (name.is_string()) listed.insert(name.get<std::string>());
  }
  const auto is_other = [&](const Property& one) { return !listed.contains(one.name); };
  if (std::any_of(out->named.begin(), out->named.end(),
                  [&](const Property& one) { return one.required && is_other(one); })) {
    throw NoValue(absl::StrCat(path, ": a name is required that may not be there"));
  }
  std::erase_if(out->named, is_other);
  for (const Property& one : out->named) listed.erase(one.name);
  for (const Json& json : names["enum"]) {
    const std::string name = json.is_string() ? json.get<std::string>() : "";
    if (listed.erase(name) > 0 && !out->taken.contains(name) && !out->other_value.empty()) {
      out->named.push_back({name, out->other_value, false});
    }
  }
  out->other_value.clear();
}

void SchemaWriter::ReadOthers(const Json& whole, const std::string& path, Properties* out) {
  const Json& patterns = At(whole, "patternProperties");
  const char* const word = OtherProperties(whole);
  const Json& others = At(whole, word);
  const bool names_nothing = At(whole, "properties").empty() && At(whole, "required").empty();
  if (!patterns.empty()) {
    if (names_nothing && patterns.size() == 1 && (others.is_null() || others == false)) {
      const auto pattern = patterns.items().begin();
      const Json name = {{"type", Json::array({"string"})}, {"pattern", pattern.key()}};
      const std::string place = PathTo(absl::StrCat(path, "/patternProperties"), pattern.key());
      out->other_name = WriteName(name, place);
      out->other_value = Write(pattern.value(), place);
      return;
    }
    Drop(path, "patternProperties");
    // additionalProperties is about names that match no pattern.
    if (!others.is_null()) Drop(path, word);
    out->other_value = rules_.Any();
    return;
  }
  try {
    if (!others.is_null()) {
      out->other_value = Write(others, PathTo(path, word));
    } else if (names_nothing) {
      out->other_value = rules_.Any();
    }
  } catch (const NoValue&) {  // other_value stays empty: no other properties
  }
}

std::string SchemaWriter::Object(const Json& whole, const std::string& path) {
  Properties all;
  ReadOthers(whole, path, &all);
  ReadProperties(whole, path, &all);
  ReadNames(whole, path, &all);
  int64_t least = std::max<int64_t>(CountOf(whole, "minProperties"), 0);
  const int64_t most = CountOf(whole, "maxProperties");
  const bool is_closed = all.other_value.empty();
  if (all.other_name.empty()) all.other_name = rules_.Name(all.taken);
  const std::string other =
      is_closed ? "" : rules_.Add(absl::StrCat(all.other_name, " \": \" ", all.other_value));
  const auto count = static_cast<int64_t>(all.named.size());
  if (most != kNoEnd && least > most) throw NoValue(absl::StrCat(path, ": no such count"));
  if (count == 0) {
    if (is_closed && least > 0) throw NoValue(absl::StrCat(path, ": too few names may be there"));
    return is_closed ? "\"{}\"" : Sequence(other, least, most, "{", "}");
  }
  const auto needed = std::count_if(all.named.begin(), all.named.end(),
                                    [](const Property& one) { return one.required; });
  if (most != kNoEnd && (most < count || !is_closed)) Drop(path, "maxProperties");
  if (least > std::max<int64_t>(needed, 1)) {
    if (is_closed && least > count)
      throw NoValue(absl::StrCat(path, ": too few names may be there"));
    if (least <= count) {
      for (Property& one : all.named) one.required = true;
    } else {
      Drop(path, "minProperties");
    }
  }
  std::vector<std::string> pairs, ways;
  for (const Property& one : all.named) {
    pairs.push_back(
        absl::StrCat(EbnfText(absl::StrCat(TextOf(one.name, false), ": ")), " ", one.value));
  }
  // An object's first property has no comma before it. It is any of the properties up to the first
  // required one, so each of these gets an alternative.
  size_t first = 0;
  while (first < pairs.size() && !all.named[first].required) ++first;
  const auto after_comma = [&](size_t i) {
    return absl::StrCat(" (\", \" ", pairs[i], all.named[i].required ? ")" : ")?");
  };
  std::string rest;  // the properties that may follow
  for (size_t i = first + 1; i < pairs.size(); ++i) rest += after_comma(i);
  if (!is_closed) absl::StrAppend(&rest, " (\", \" ", other, ")*");
  const bool may_be_empty = first == pairs.size();
  if (may_be_empty && !is_closed) ways.push_back(absl::StrCat(other, rest));
  for (size_t i = std::min(first + 1, pairs.size()); i-- > 0;) {
    if (!rest.empty()) rest = absl::StrCat(" ", rules_.Add(rest));
    ways.push_back(absl::StrCat(pairs[i], rest));
    rest = absl::StrCat(after_comma(i), rest);
  }
  FOX_CHECK(!ways.empty());
  return absl::StrCat("\"{\" (", absl::StrJoin(ways, " | "), ") \"}\"",
                      may_be_empty && least == 0 ? " | \"{}\"" : "");
}

}  // namespace fox
