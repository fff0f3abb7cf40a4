// JsonFields: see json_fields.h.
#include "server/http/openai/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/grammar/json_schema.h"

namespace fox {
namespace {

// Room for a prompt of a million ids, and for the deepest schema inside of its request.
constexpr JsonLimits kLimits{std::numeric_limits<size_t>::max(), /*max_depth=*/kMaxSchemaDepth + 8,
                             /*max_values=*/size_t{4} << 20};

// The integer that a number is; 4.0 and 1e3 are integers, too (JSON Schema, validation 6.1.1), and
// what languages write that have one type of number.
std::optional<int64_t> IntegerIn(const ExactJson& value, int64_t low, int64_t high) {
  constexpr double kExact = 1LL << 53;
  int64_t number = 0;
  if (value.is_number_integer()) {
    number = value.get<int64_t>();
    if (value.is_number_unsigned() && number < 0) return std::nullopt;  // 2^63 or more
  } else {
    const double real = NumberOf(value);
    if (!(std::abs(real) <= kExact) || std::trunc(real) != real) return std::nullopt;
    number = static_cast<int64_t>(real);
  }
  return number >= low && number <= high ? std::optional(number) : std::nullopt;
}

}  // namespace

absl::StatusOr<JsonFields> JsonFields::Parse(const std::string& body) {
  absl::StatusOr<ExactJson> json = ReadExactJson(body, kLimits, "the body");
  if (!json.ok()) return json.status();
  if (!json->is_object()) return absl::InvalidArgumentError("the body: must be a JSON object");
  return JsonFields(*std::move(json));
}

const ExactJson* JsonFields::Find(const char* name) {
  asked_.insert(name);
  const auto found = object_.find(name);
  return !status_.ok() || found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> JsonFields::Bool(const char* name) {
  const ExactJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, "true or false");
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Int(const char* name, int64_t low, int64_t high) {
  FOX_CHECK(low <= high);
  const ExactJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = IntegerIn(*value, low, high);
  if (!number.has_value()) {
    Fail(name, absl::StrCat("an integer in [", low, ", ", high, "]"));
  }
  return number;
}

std::optional<float> JsonFields::Float(const char* name) {
  const ExactJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!std::isnan(NumberOf(*value))) return ToFloat(*value);
  Fail(name, "a number");
  return std::nullopt;
}

std::optional<std::string> JsonFields::String(const char* name) {
  const ExactJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(name, "a string");
  return std::nullopt;
}

std::vector<std::string> JsonFields::Strings(const char* name, size_t max_strings) {
  std::vector<std::string> out;
  const ExactJson* value = Find(name);
  if (value == nullptr) return out;
  if (value->is_string()) {
    out.push_back(value->get<std::string>());
  } else if (value->is_array() && value->size() > max_strings) {
    Fail(name, absl::StrCat("a string or a list of at most ", max_strings, " strings"));
  } else if (value->is_array()) {
    for (const ExactJson& entry : *value) {
      if (!entry.is_string()) break;
      out.push_back(entry.get<std::string>());
    }
    if (out.size() != value->size()) Fail(name, "a string or a list of strings");
  } else {
    Fail(name, "a string or a list of strings");
  }
  return out;
}

std::vector<uint32_t> JsonFields::Ids(const char* name) {
  std::vector<uint32_t> out;
  const ExactJson* value = Find(name);
  if (value != nullptr && !ReadIds(*value, &out)) Fail(name, "a list of token ids");
  return out;
}

JsonFields JsonFields::Object(const char* name) {
  const ExactJson* value = Find(name);
  if (value != nullptr && !value->is_object()) Fail(name, "an object");
  return FieldsOf(value == nullptr ? ExactJson() : *value);
}

void JsonFields::Fail(const char* name, absl::string_view must_be) {
  status_.Update(absl::InvalidArgumentError(absl::StrCat(name, ": must be ", must_be)));
}

void JsonFields::FailWithin(const char* name, const absl::Status& status) {
  if (status.ok()) return;
  FOX_CHECK(!status.message().empty());
  status_.Update(absl::Status(status.code(), absl::StrCat(name, ".", status.message())));
}

absl::StatusOr<JsonFields> ReadBody(const std::string& body, const ConversionContext& context) {
  absl::StatusOr<JsonFields> fields = JsonFields::Parse(body);
  if (!fields.ok()) return fields.status();
  const std::string model = fields->String("model").value_or("");
  absl::Status status = fields->status();
  if (status.ok()) status = CheckModelName(model, context);
  if (!status.ok()) return status;
  return fields;
}

JsonFields FieldsOf(const ExactJson& value) {
  return JsonFields(value.is_object() ? value : ExactJson::object());
}

absl::Status CheckFields(const JsonFields& fields, FieldPlace place) {
  absl::Status status = fields.status();
  status.Update(CheckUnreadFields(fields, place));
  return Below(".", status);
}

absl::Status UnknownType(const std::string& type, const char* known) {
  const std::string named = absl::CHexEscape(type.substr(0, 32));
  return absl::InvalidArgumentError(type.empty()
                                        ? absl::StrCat(".type: must be ", known)
                                        : absl::StrCat(".type: no ", named, "; it is ", known));
}

absl::Status Below(const std::string& place, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(place, status.message()));
}

float ToFloat(const ExactJson& number) {
  const double value = NumberOf(number);
  FOX_CHECK(!std::isnan(value));
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

bool ReadIds(const ExactJson& list, std::vector<uint32_t>* out) {
  if (!list.is_array()) return false;
  out->reserve(list.size());
  for (const ExactJson& id : list) {
    const auto number = IntegerIn(id, 0, std::numeric_limits<uint32_t>::max());
    if (!number.has_value()) return false;
    out->push_back(static_cast<uint32_t>(*number));
  }
  return true;
}

}  // namespace fox
