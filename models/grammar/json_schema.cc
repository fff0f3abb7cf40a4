// From a schema to rules: Plain checks its keywords, Whole merges $ref and allOf into it, and
// WriteWhole turns it into rules. See json_schema.h and schema_writer.h.
#include "models/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "models/grammar/schema_merge.h"
#include "models/grammar/schema_writer.h"
#include "models/grammar/work_meter.h"

namespace fox {
namespace {

using Json = ExactJson;

constexpr int kMaxRefs = 128;  // in one chain

// Keywords that assert something, by the type of the values that they restrict. All other keywords
// are annotations or belong to one of these. Separated by spaces.
struct Words {
  const char* type;
  const char* supported;
  const char* others;
};
constexpr Words kWords[] = {
    {"", "$ref type const enum anyOf oneOf allOf", "not if $dynamicRef $recursiveRef"},
    {"string", "minLength maxLength pattern format", ""},
    {"number", "minimum maximum exclusiveMinimum exclusiveMaximum", "multipleOf"},
    {"object",
     "properties required additionalProperties patternProperties propertyNames minProperties "
     "maxProperties unevaluatedProperties",
     "dependentRequired dependentSchemas dependencies"},
    {"array", "items prefixItems minItems maxItems unevaluatedItems", "contains uniqueItems"},
};
constexpr char kTypes[] = "object array string number integer boolean null";

bool Holds(const char* words, const std::string& word) {
  const std::vector<absl::string_view> all = absl::StrSplit(words, ' ');
  return std::find(all.begin(), all.end(), word) != all.end();
}

// True if the schema allows values of `type`. Its `type` may be absent, a text or a list.
bool HasType(const Json& schema, const std::string& type) {
  const Json& types = At(schema, "type");
  const auto is = [&](const Json& one) {
    return one == type || (type == "number" && one == "integer");
  };
  return types.is_null() || is(types) || std::any_of(types.begin(), types.end(), is);
}

// True if every value satisfies the keyword `word`, as {"not": false}.
bool SaysNothing(const Json& schema, const std::string& word) {
  const Json& value = schema[word];
  const auto number = [&](const char* name) { return NumberOf(At(schema, name)); };
  if (word == "uniqueItems") return value == false || number("maxItems") <= 1;
  if (word == "contains") return number("minContains") == 0 && !schema.contains("maxContains");
  if (word == "if") return !schema.contains("then") && !schema.contains("else");
  if (word == "not") return value == false;
  if (word == "multipleOf") {
    return !HasType(schema, "number") || (At(schema, "type") == "integer" && NumberOf(value) == 1);
  }
  if (word.starts_with("unevaluated")) return value == true || (value.is_object() && value.empty());
  return word.starts_with("depend") && value.is_object() && value.empty();
}

// True if a $ref in `json` is relative to the innermost $id around it.
bool HasLocalRef(const Json& json) {
  SpendWork(1);
  const Json& ref = At(json, "$ref");
  if (ref.is_string() && ref.get<std::string>().starts_with('#')) return true;
  return json.is_structured() && std::any_of(json.begin(), json.end(), HasLocalRef);
}

// The schema in `json` that `name` identifies; null: there is none.
const Json* Identified(const Json& json, const std::string& name) {
  SpendWork(1);
  const Json& anchor = At(json, "$anchor");
  const bool is_anchor = anchor.is_string() && name == "#" + anchor.get<std::string>();
  // `id` is what draft 4 calls `$id`.
  if (At(json, "$id") == name || At(json, "id") == name || is_anchor) return &json;
  if (!json.is_structured()) return nullptr;
  for (const auto& [word, part] : json.items()) {
    if (word == "enum" || word == "const") continue;  // values, not schemas
    if (const Json* found = Identified(part, name)) return found;
  }
  return nullptr;
}

// Takes the keywords about what no part of the schema has evaluated out of it: they count when its
// parts are merged.
Json TakeUnevaluated(Json* schema) {
  Json out = Json::object();
  for (const char* word : {"unevaluatedProperties", "unevaluatedItems"}) {
    if (!schema->contains(word)) continue;
    out[word] = (*schema)[word];
    schema->erase(word);
  }
  return out;
}

// The problem of a keyword whose value has not the form that JSON Schema demands; null: none.
const char* FormProblem(const std::string& word, const Json& value) {
  const auto all = [&](auto&& holds) {
    return value.is_array() && std::all_of(value.begin(), value.end(), holds);
  };
  if (word == "type") {
    const auto is_type = [](const Json& one) {
      return one.is_string() && Holds(kTypes, one.get<std::string>());
    };
    return is_type(value) || (all(is_type) && !value.empty()) ? nullptr : "must name types";
  }
  if (word == "enum" || word == "anyOf" || word == "oneOf" || word == "allOf") {
    return value.is_array() && !value.empty() ? nullptr : "must be a list of one or more";
  }
  if (word == "required") {
    return all([](const Json& one) { return one.is_string(); }) ? nullptr : "must list names";
  }
  if (word == "prefixItems") return value.is_array() ? nullptr : "must be a list of schemas";
  if (word == "properties" || word == "patternProperties") {
    return value.is_object() ? nullptr : "must be an object of schemas";
  }
  if (word == "pattern" || word == "format" || word == "$ref") {
    return value.is_string() ? nullptr : "must be a text";
  }
  if (Holds(kWords[2].supported, word)) {
    return value.is_boolean() || !std::isnan(NumberOf(value)) ? nullptr : "must be a number";
  }
  if (word.starts_with("min") || word.starts_with("max")) {
    const double count = NumberOf(value);
    if (!(count >= 0 && count == std::floor(count))) return "must be an integer of 0 or more";
    return count <= kMaxCount || word.starts_with("max") ? nullptr : "must be at most 2^20";
  }
  return nullptr;
}

bool RequiresName(const Json& schema, const std::string& name) {
  const Json& names = At(schema, "required");
  SpendWork(static_cast<int64_t>(1 + names.size()));
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Narrow lets the schema require the one property and forbid the other one, where there are such.
void Narrow(const std::optional<std::string>& required, const std::optional<std::string>& forbidden,
            Json* schema) {
  if (required && !RequiresName(*schema, *required)) (*schema)["required"].push_back(*required);
  if (forbidden) (*schema)["properties"][*forbidden] = false;
}

// A property that both schemas name, but only the first one requires.
std::optional<std::string> NameOfOne(const Json& one, const Json& other) {
  for (const Json& name : At(one, "required")) {
    if (At(other, "properties").contains(name) && !RequiresName(other, name)) return name;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> WordsOf(const std::string& type) {
  for (const Words& words : kWords) {
    if (words.type == type) return absl::StrSplit(words.supported, ' ');
  }
  return {};
}

std::string PathTo(const std::string& path, const std::string& word) {
  return absl::StrCat(path, "/", absl::StrReplaceAll(word, {{"~", "~0"}, {"/", "~1"}}));
}

void SchemaWriter::Fail(const std::string& path, const std::string& problem) const {
  throw std::runtime_error(path.empty() ? problem : absl::StrCat(path, ": ", problem));
}

void SchemaWriter::Drop(const std::string& path, const std::string& keyword) {
  if (!relax_) Fail(path, absl::StrCat(keyword, " is not supported here"));
  List(path, keyword);
}

void SchemaWriter::List(const std::string& path, const std::string& keyword) {
  const std::string place = PathTo(path, keyword);
  if (std::find(relaxed_.begin(), relaxed_.end(), place) == relaxed_.end()) {
    relaxed_.push_back(place);
  }
}

void SchemaWriter::ReadWord(const Json& schema, const std::string& word, const std::string& path,
                            Json* out) {
  const Json& value = schema[word];
  if (const char* problem = FormProblem(word, value)) {
    Fail(path, absl::StrCat(word, " ", problem));
  }
  const bool is_bound = word == "exclusiveMinimum" || word == "exclusiveMaximum";
  if (word == "const") {
    (*out)["enum"] = Json::array({value});
  } else if (word == "type" && value.is_string()) {
    (*out)["type"] = Json::array({value});
  } else if (word == "items" && value.is_array()) {  // draft 7
    (*out)["prefixItems"] = value;
    if (const Json& rest = At(schema, "additionalItems"); !rest.is_null()) (*out)["items"] = rest;
  } else if (is_bound && value.is_boolean()) {  // draft 4
    const char* const bound = word == "exclusiveMinimum" ? "minimum" : "maximum";
    if (value == true && !At(schema, bound).is_null()) (*out)[word] = schema[bound];
  } else {
    (*out)[word] = value;
  }
}

Json SchemaWriter::Plain(const Json& schema, const std::string& path) {
  SpendWork(static_cast<int64_t>(8 + schema.size()));
  if (schema == true) return Json::object();
  if (schema == false) throw NoValue(absl::StrCat(path, ": no value is of false"));
  if (!schema.is_object()) Fail(path, "each schema must be an object, true or false");
  const Json& excluded = At(schema, "not");
  if (excluded == true || (excluded.is_object() && excluded.empty())) {
    throw NoValue(absl::StrCat(path, ": no value is of this schema"));
  }
  if (!path.empty() && schema.contains("$id") && HasLocalRef(schema)) {
    Fail(path, "$id is not supported around $ref, which it would change");
  }
  if (schema.contains("const") && !At(schema, "enum").is_null()) {
    Json one = schema, other = {{"enum", schema["enum"]}};
    one.erase("enum");
    return Merge(Plain(one, path), other, path, "enum");
  }
  Json out = Json::object();
  for (const Words& words : kWords) {
    if (*words.type != '\0' && !HasType(schema, words.type)) continue;
    for (const auto& [word, value] : schema.items()) {
      // Programs write null where a keyword is not set.
      if ((value.is_null() && word != "const") || SaysNothing(schema, word)) continue;
      if (Holds(words.supported, word)) {
        ReadWord(schema, word, path, &out);
      } else if (Holds(words.others, word)) {
        Drop(path, word);
      }
    }
  }
  return out;
}

const Json* SchemaWriter::Target(std::string ref) const {
  const std::string base = root_.is_object() ? root_.value("$id", "") : "";
  if (!base.empty() && ref.starts_with(base + "#")) ref.erase(0, base.size());
  if (ref == "#") return &root_;
  if (!ref.starts_with("#/")) return Identified(root_, ref);
  const Json* at = &root_;
  for (const absl::string_view part : absl::StrSplit(ref.substr(2), '/')) {
    std::string name;  // as in a URI
    for (size_t i = 0; i < part.size(); ++i) {
      const std::string digits(part.substr(i + 1, 2));
      const bool is_coded = part[i] == '%' && digits.size() == 2 &&
                            absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) &&
                            absl::ascii_isxdigit(static_cast<unsigned char>(digits[1]));
      name += is_coded ? absl::HexStringToBytes(digits) : std::string(1, part[i]);
      if (is_coded) i += 2;
    }
    name = absl::StrReplaceAll(name, {{"~1", "/"}, {"~0", "~"}});
    size_t index = 0;
    if (at->is_object() && at->contains(name)) {
      at = &(*at)[name];
    } else if (at->is_array() && absl::SimpleAtoi(name, &index) && index < at->size()) {
      at = &(*at)[index];
    } else {
      return nullptr;
    }
  }
  return at;
}

Json SchemaWriter::Merge(const Json& a, const Json& b, const std::string& path,
                         const std::string& keyword) {
  try {
    return Merged(a, b);
  } catch (const NoValue&) {
    throw;
  } catch (const std::runtime_error& error) {
    if (!relax_) Fail(path, error.what());
    Drop(path, keyword);
    return a.empty() ? b : a;
  }
}

Json SchemaWriter::Whole(const Json& schema, const std::string& path) {
  Json out = Plain(schema, path);
  if (!out.contains("$ref") && !out.contains("allOf")) return out;
  const Json unevaluated = TakeUnevaluated(&out);
  if (++depth_ > kMaxRefs) Fail(path, "$ref refers to itself");
  const auto leave = absl::MakeCleanup([this] { --depth_; });
  if (const Json ref = At(out, "$ref"); ref.is_string()) {
    out.erase("$ref");
    const std::string name = ref.get<std::string>();
    if (const Json* const target = Target(name)) {
      const std::string place = target == &root_         ? ""
                                : name.starts_with("#/") ? name.substr(1)
                                                         : PathTo(path, "$ref");
      out = Merge(Whole(*target, place), out, path, "$ref");
    } else {
      if (!relax_) Fail(path, absl::StrCat("$ref ", name, " leads to nothing in the schema"));
      Drop(path, "$ref");
    }
  }
  if (const Json parts = At(out, "allOf"); parts.is_array()) {
    out.erase("allOf");
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string place = absl::StrCat(path, "/allOf/", i);
      out = Merge(out, Whole(parts[i], place), path, "allOf");
    }
  }
  out.insert(unevaluated.begin(), unevaluated.end());  // a part's own has evaluated all
  return out;
}

std::string SchemaWriter::Write(const Json& schema, const std::string& path) {
  return WriteWhole(Whole(schema, path), path);
}

std::string SchemaWriter::WriteWhole(const Json& whole, const std::string& path) {
  const std::string key = TextOf(in_name_ ? Json::array({whole}) : whole, false);
  SpendWork(static_cast<int64_t>(key.size()));
  const auto [memo, is_new] = memo_.try_emplace(key);
  if (!is_new) {
    // The schema needs itself for the same value: a validator would not come to an end (Core,
    // "Guarding Against Infinite Recursion").
    if (memo->second.is_open && memo->second.level == level_) Fail(path, "$ref refers to itself");
    memo->second.is_used = true;
    return memo->second.name;
  }
  memo->second.name = rules_.Reserve();
  memo->second.level = level_;
  const std::string outer = rules_.place();
  const auto leave = absl::MakeCleanup([&] { rules_.set_place(outer); });
  rules_.set_place(place_ + path);
  std::string body;
  try {
    body = Body(whole, path);
  } catch (const NoValue& error) {
    if (memo->second.is_used) Fail(path, "a schema that refers to itself has no value");
    memo_.erase(memo);
    throw;
  } catch (WorkSpent& error) {
    if (error.place.empty()) error.place = path;
    throw;
  }
  memo->second.is_open = false;
  if (memo->second.is_used) {
    rules_.Define(memo->second.name, body);
  } else {
    memo->second.name = rules_.Add(body);
  }
  return memo->second.name;
}

std::string SchemaWriter::Body(const Json& whole, const std::string& path) {
  if (whole.contains("anyOf")) return Alternatives(whole, "anyOf", path);
  if (whole.contains("oneOf")) return Alternatives(whole, "oneOf", path);
  return whole.contains("enum") ? Enum(whole, path) : Types(whole, path);
}

std::optional<SchemaWriter::Separation> SchemaWriter::Separate(const Json& a, const Json& b,
                                                               const std::string& path) {
  if (AreDisjoint(a, b)) return Separation{};
  const Json object = Json::array({"object"});
  const auto writes_objects = [&](const Json& schema) {
    if (schema.contains("type")) return At(schema, "type") == object;
    const bool is_enough = schema.contains("enum") || schema.contains("anyOf") ||
                           schema.contains("oneOf");  // of other types, too
    return schema.contains("properties") && !is_enough;
  };
  if (!writes_objects(a) || !writes_objects(b)) return std::nullopt;
  const auto whole_of = [&](const Json& schema) -> std::optional<Json> {
    try {
      return Whole(schema, path);
    } catch (const NoValue&) {
      return std::nullopt;
    }
  };
  for (const auto& [one, other] : {std::pair(&a, &b), {&b, &a}}) {
    for (const auto& [name, value] : At(*one, "properties").items()) {
      const Json& there = At(At(*other, "properties"), name);
      if (there.is_null()) {
        if (RequiresName(*one, name) && At(*other, "additionalProperties") == false &&
            !other->contains("patternProperties")) {
          return Separation{};
        }
        continue;
      }
      const std::optional<Json> here = whole_of(value), beyond = whole_of(there);
      if ((!here && RequiresName(*other, name)) || (!beyond && RequiresName(*one, name))) {
        return Separation{};
      }
      if (here && beyond && AreDisjoint(*here, *beyond)) {
        return Separation{name, {}, {}};
      }
    }
  }
  // Objects have no unnamed properties where a schema names some: so what either writes lacks a
  // property that the other requires.
  const auto writes = [&](const Json& schema, const std::string& name) {
    const Json &names = At(schema, "properties"), &others = At(schema, "additionalProperties");
    const auto holds = [&](const char* word) { return schema.contains(word); };
    constexpr const char* kMore[] = {"patternProperties", "unevaluatedProperties", "anyOf", "oneOf",
                                     "enum"};
    return names.empty() || names.contains(name) || RequiresName(schema, name) ||
           !(others.is_null() || others == false) ||
           std::any_of(std::begin(kMore), std::end(kMore), holds);
  };
  const auto lacks = [&](const Json& schema, const Json& required) {
    return std::any_of(required.begin(), required.end(),
                       [&](const Json& name) { return !writes(schema, name); });
  };
  if (lacks(a, At(b, "required")) && lacks(b, At(a, "required"))) return Separation{};
  Separation apart{{}, NameOfOne(b, a), NameOfOne(a, b)};
  if (!apart.forbidden_by_a || !apart.forbidden_by_b) return std::nullopt;
  return apart;
}

std::string SchemaWriter::Alternatives(const Json& whole, const std::string& keyword,
                                       const std::string& path) {
  Json beside = whole;
  beside.erase(keyword);
  const Json unevaluated = TakeUnevaluated(&beside);
  std::vector<std::pair<Json, std::string>> branches;  // with their paths
  std::string none;
  for (size_t i = 0; i < whole[keyword].size(); ++i) {
    const std::string place = absl::StrCat(path, "/", keyword, "/", i);
    try {
      Json branch = Merge(Whole(whole[keyword][i], place), beside, path, keyword);
      branch.insert(unevaluated.begin(), unevaluated.end());
      branches.emplace_back(std::move(branch), place);
    } catch (const NoValue& error) {
      none = error.what();
    }
  }
  // A value must not be of another branch as that was sent, so the branches are compared as sent.
  std::vector<Json> sent;
  for (size_t i = 0; keyword == "oneOf" && i < branches.size(); ++i) {
    sent.push_back(branches[i].first);
    for (size_t j = 0; j < i; ++j) {
      if (const auto apart = Separate(sent[i], sent[j], path)) {
        Narrow(apart->required, apart->forbidden_by_a, &branches[i].first);
        Narrow(apart->required, apart->forbidden_by_b, &branches[j].first);
        continue;
      }
      if (!relax_) {
        Fail(path,
             "oneOf is supported of schemas that differ in type, or in const or enum, or in the "
             "const or enum of a property of both, and of objects that each lack a property which "
             "the other requires");
      }
      Drop(path, keyword);
    }
  }
  std::vector<std::string> ways;
  for (const auto& [branch, place] : branches) {
    try {
      ways.push_back(WriteWhole(branch, place));
    } catch (const NoValue& error) {
      none = error.what();
    }
  }
  if (ways.empty()) throw NoValue(none);
  return absl::StrJoin(ways, " | ");
}

absl::StatusOr<SchemaRules> AddSchemaRules(const std::string& schema, bool relax,
                                           EbnfRules* rules) {
  const JsonLimits limits = {schema.size(), kMaxSchemaDepth, schema.size()};
  const absl::StatusOr<Json> root = ReadExactJson(schema, limits, "the schema");
  if (!root.ok()) return root.status();
  try {
    SchemaWriter writer(*root, relax, rules);
    SchemaRules out{writer.Write(*root, ""), {}};
    out.relaxed = writer.relaxed();
    return out;
  } catch (const WorkSpent& error) {
    const std::string place = absl::CHexEscape(error.place.substr(0, 200));
    return absl::InvalidArgumentError(absl::StrCat(place, place.empty() ? "" : ": ", error.what()));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::CHexEscape(std::string(error.what()).substr(0, 300)));
  }
}

}  // namespace fox
