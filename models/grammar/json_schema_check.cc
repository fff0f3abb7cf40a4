// Keywords by the kind of their schema. See json_schema_check.h.
#include "models/grammar/json_schema_check.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/json_reader.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostRepeats = 1 << 20;

// Words that say nothing about what is valid.
constexpr char kAnnotations[] =
    "title description default examples example $schema $id $comment $defs definitions deprecated "
    "readOnly writeOnly discriminator nullable strict";

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
  const char* kind = nullptr;
  const char* words = "";
  for (const Kind& row : kKinds) {
    if (!schema.contains(row.keyword)) continue;
    kind = row.keyword;
    words = row.words;
    break;
  }
  for (const auto& [word, value] : schema.items()) {
    if ((kind != nullptr && word == kind) || Holds(words, word) || Holds(kAnnotations, word) ||
        word.starts_with("x-")) {
      continue;
    }
    const std::string name = absl::CHexEscape(word.substr(0, 32));
    return absl::InvalidArgumentError(kind == nullptr
                                          ? absl::StrCat(name, " is not supported")
                                          : absl::StrCat(name, " is not supported beside ", kind));
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

absl::Status Check(const Json& schema);

absl::Status CheckAll(const Json& schemas) {
  for (const Json& schema : schemas) {
    if (absl::Status status = Check(schema); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Depth is bounded: it is that of the text.
absl::Status Check(const Json& schema) {
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
  for (const char* word : {"anyOf", "allOf", "prefixItems", "properties", "$defs", "definitions"}) {
    check(word, [](const Json& value) {
      return value.is_structured() ? CheckAll(value)
                                   : absl::InvalidArgumentError("a list of schemas is none");
    });
  }
  for (const char* word : {"items", "additionalProperties"}) check(word, Check);
  return status;
}

}  // namespace

absl::Status CheckJsonSchema(const std::string& schema) {
  const JsonLimits limits = {schema.size(), kMaxSchemaDepth, schema.size()};
  const absl::StatusOr<Json> parsed = ReadJson(schema, limits, "the schema");
  if (!parsed.ok()) return parsed.status();
  return Check(*parsed);
}

}  // namespace fox
