// Keywords by the kind of their schema. See json_schema_check.h.
#include "models/grammar/json_schema_check.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/grammar/work_meter.h"
#include "models/json_reader.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostRepeats = 1 << 20;
constexpr int64_t kCompareSteps = 100'000;

// Words that say nothing about what is valid.
constexpr char kAnnotations[] =
    "title description default examples example $schema $id $comment $defs definitions deprecated "
    "readOnly writeOnly discriminator nullable strict";

constexpr char kUnknownFormats[] =
    "idn-email idn-hostname iri iri-reference json-pointer regex relative-json-pointer "
    "uri-template";

// What a schema is: the first row of which it has the keyword, and the words that may stand beside.
struct Kind {
  const char* keyword;
  const char* words;
};
constexpr Kind kKinds[] = {
    {"$ref", ""},
    {"const", "type"},
    {"enum", "type"},
    {"anyOf", ""},
    {"oneOf", ""},
    {"allOf", ""},
    {"type",
     "minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum "
     "properties required additionalProperties minProperties maxProperties items prefixItems "
     "minItems maxItems"},
    {"properties", "required additionalProperties minProperties maxProperties"},
    {"additionalProperties", "minProperties maxProperties"},
    {"items", "prefixItems minItems maxItems"},
    {"prefixItems", "minItems maxItems"},
};

bool Holds(const char* words, const std::string& word) {
  const std::vector<std::string> all = absl::StrSplit(words, ' ');
  return std::find(all.begin(), all.end(), word) != all.end();
}

bool IsOfType(const Json& value, const std::string& type) {
  return (type == "string" && value.is_string()) || (type == "null" && value.is_null()) ||
         (type == "number" && value.is_number()) || (type == "boolean" && value.is_boolean()) ||
         (type == "integer" && value.is_number_integer()) ||
         (type == "object" && value.is_object()) || (type == "array" && value.is_array());
}

// Of `const` and `enum`, beside which a type is not looked at.
absl::Status CheckValues(const Json& values, const Json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end()) return absl::OkStatus();
  for (const Json& value : values) {
    if (!type->is_string() || !IsOfType(value, type->get<std::string>())) {
      return absl::InvalidArgumentError(
          "enum and const: each value must be of the one type beside them");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWords(const Json& schema) {
  const Kind* const none = std::end(kKinds);
  const Kind* const kind =
      std::find_if(kKinds, none, [&](const Kind& row) { return schema.contains(row.keyword); });
  for (const auto& [word, value] : schema.items()) {
    if ((kind != none && (word == kind->keyword || Holds(kind->words, word))) ||
        Holds(kAnnotations, word) || word.starts_with("x-")) {
      continue;
    }
    const std::string name = absl::CHexEscape(word.substr(0, 32));
    return absl::InvalidArgumentError(
        kind == none ? absl::StrCat(name, " is not supported")
                     : absl::StrCat(name, " is not supported beside ", kind->keyword));
  }
  if ((schema.contains("minimum") && schema.contains("exclusiveMinimum")) ||
      (schema.contains("maximum") && schema.contains("exclusiveMaximum"))) {
    return absl::InvalidArgumentError("one bound is supported at each end");
  }
  if (schema.contains("properties") &&
      (schema.contains("minProperties") || schema.contains("maxProperties"))) {
    return absl::InvalidArgumentError("counts of properties are not supported beside properties");
  }
  const bool integer = schema.contains("type") && schema["type"] == "integer";
  for (const char* word : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    if (schema.contains(word) && !integer) {
      return absl::InvalidArgumentError(absl::StrCat(word, " is supported of an integer alone"));
    }
  }
  for (const char* word :
       {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}) {
    const auto value = schema.find(word);
    if (value == schema.end()) continue;
    if (!value->is_number_integer() || *value < 0 || *value > kMostRepeats) {
      return absl::InvalidArgumentError(
          absl::StrCat(word, " must be an integer in [0, ", kMostRepeats, "]"));
    }
  }
  if (schema.contains("pattern") + schema.contains("format") +
          (schema.contains("minLength") || schema.contains("maxLength")) >
      1) {
    return absl::InvalidArgumentError(
        "pattern, format and lengths are not supported beside each other");
  }
  return absl::OkStatus();
}

// Null: it has none.
const Json& At(const Json& object, const std::string& name) {
  static const Json kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

const Json& Resolved(const Json& schema, const Json& root) {
  const std::string defs = "#/$defs/";
  const Json& ref = At(schema, "$ref");
  if (!ref.is_string() || !ref.get_ref<const std::string&>().starts_with(defs)) return schema;
  return At(At(root, "$defs"), ref.get_ref<const std::string&>().substr(defs.size()));
}

// Whether no value is of both, by what const, enum and type say.
bool AreDisjoint(const Json& a, const Json& b) {
  const auto values = [](const Json& schema) {
    std::vector<const Json*> out;
    if (schema.contains("const")) out.push_back(&schema["const"]);
    for (const Json& value : At(schema, "enum")) out.push_back(&value);
    SpendWork(static_cast<int64_t>(1 + out.size()));
    return out;
  };
  const auto types = [](const Json& schema, const std::vector<const Json*>& known) {
    std::set<std::string_view> out;
    for (const Json* value : known) out.insert(value->type_name());
    const Json& type = At(schema, "type");
    if (!out.empty()) return out;
    SpendWork(static_cast<int64_t>(type.size()));
    for (const char* name : {"object", "array", "string", "boolean", "null", "number"}) {
      const auto is = [&](const Json& one) {
        return one == name || (one == "integer" && std::string_view(name) == "number");
      };
      if (type.is_array() ? std::any_of(type.begin(), type.end(), is) : is(type)) out.insert(name);
    }
    return out;
  };
  const std::vector<const Json*> of_a = values(a), of_b = values(b);
  const std::set<std::string_view> types_a = types(a, of_a), types_b = types(b, of_b);
  const bool share_type = types_a.empty() || types_b.empty() ||
                          std::any_of(types_a.begin(), types_a.end(),
                                      [&](auto type) { return types_b.contains(type); });
  const auto in_b = [&](const Json* value) {
    SpendWork(static_cast<int64_t>(of_b.size()));
    return std::any_of(of_b.begin(), of_b.end(),
                       [&](const Json* other) { return *other == *value; });
  };
  return !share_type ||
         (!of_a.empty() && !of_b.empty() && std::none_of(of_a.begin(), of_a.end(), in_b));
}

// Whether what is written for one is not of the other.
bool Excludes(const Json& a, const Json& b, const Json& root) {
  if (!a.is_object() || !b.is_object()) return false;
  if (AreDisjoint(a, b)) return true;
  const auto writes_objects = [](const Json& schema) {
    return At(schema, "properties").is_object() &&
           (!schema.contains("type") || schema["type"] == "object");
  };
  if (!writes_objects(a) || !writes_objects(b)) return false;
  const Json &names = At(a, "required"), &others = At(b, "required");
  return std::any_of(names.begin(), names.end(), [&](const Json& name) {
    SpendWork(static_cast<int64_t>(1 + others.size()));
    if (!name.is_string() || std::find(others.begin(), others.end(), name) == others.end()) {
      return false;
    }
    const auto of = [&](const Json& schema) -> const Json& {
      return Resolved(At(schema["properties"], name.get<std::string>()), root);
    };
    return of(a).is_object() && of(b).is_object() && AreDisjoint(of(a), of(b));
  });
}

absl::Status Check(const Json& schema, const Json& root);

absl::Status CheckAll(const Json& schemas, const Json& root) {
  for (const Json& schema : schemas) {
    if (absl::Status status = Check(schema, root); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckOneOf(const Json& schemas, const Json& root) {
  for (auto a = schemas.begin(); a != schemas.end(); ++a) {
    for (auto b = schemas.begin(); b != a; ++b) {
      if (Excludes(Resolved(*a, root), Resolved(*b, root), root)) continue;
      return absl::InvalidArgumentError(
          "oneOf is supported of schemas that differ in type, or in const or enum, or in that of a "
          "property that both require");
    }
  }
  return absl::OkStatus();
}

// Depth is bounded: it is that of the text.
absl::Status Check(const Json& schema, const Json& root) {
  if (schema.is_boolean()) return absl::OkStatus();
  if (!schema.is_object())
    return absl::InvalidArgumentError("each schema must be an object, true or false");
  absl::Status status = CheckWords(schema);
  const auto check = [&](const char* word, auto&& body) {
    const auto value = schema.find(word);
    if (status.ok() && value != schema.end()) status = body(*value);
  };
  check("const", [&](const Json& value) { return CheckValues(Json::array({value}), schema); });
  check("enum", [&](const Json& values) {
    if (!values.is_array() || values.empty())
      return absl::InvalidArgumentError("enum must be a list of values");
    return CheckValues(values, schema);
  });
  check("required", [&](const Json& names) {
    const bool named = std::all_of(names.begin(), names.end(), [&](const Json& name) {
      return name.is_string() && At(schema, "properties").contains(name.get<std::string>());
    });
    return named ? absl::OkStatus()
                 : absl::InvalidArgumentError("required must list names of properties");
  });
  // Any other name is a remark, as JSON Schema has it.
  check("format", [](const Json& name) {
    return name.is_string() && !Holds(kUnknownFormats, name.get<std::string>())
               ? absl::OkStatus()
               : absl::InvalidArgumentError("this format is not supported");
  });
  check("allOf", [](const Json& value) {
    return value.is_array() && value.size() == 1
               ? absl::OkStatus()
               : absl::InvalidArgumentError("allOf must have one schema");
  });
  check("$ref", [](const Json& value) {
    const bool local =
        value.is_string() && (value == "#" || value.get<std::string>().starts_with("#/"));
    return local ? absl::OkStatus() : absl::InvalidArgumentError("$ref must begin with #/");
  });
  for (const char* word :
       {"anyOf", "oneOf", "allOf", "prefixItems", "properties", "$defs", "definitions"}) {
    check(word, [&](const Json& value) {
      return value.is_structured() ? CheckAll(value, root)
                                   : absl::InvalidArgumentError("a list of schemas is none");
    });
  }
  check("oneOf", [&](const Json& value) { return CheckOneOf(value, root); });
  for (const char* word : {"items", "additionalProperties"}) {
    check(word, [&](const Json& value) { return Check(value, root); });
  }
  return status;
}

}  // namespace

absl::Status CheckJsonSchema(const std::string& schema) {
  const JsonLimits limits = {schema.size(), kMaxSchemaDepth, schema.size()};
  const absl::StatusOr<Json> parsed = ReadJson(schema, limits, "the schema");
  if (!parsed.ok()) return parsed.status();
  try {
    const WorkMeter meter(kCompareSteps);
    return Check(*parsed, *parsed);
  } catch (const WorkSpent&) {
    return absl::InvalidArgumentError("oneOf has too much to compare");
  }
}

}  // namespace fox
