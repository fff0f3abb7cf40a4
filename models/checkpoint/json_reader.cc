// A SAX handler that builds the document and enforces the limits while the text is parsed. See
// json_reader.h.
#include "models/checkpoint/json_reader.h"

#include <cstdlib>
#include <limits>
#include <type_traits>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"

namespace fox {
namespace {

using Json = nlohmann::json;

template <typename Json>
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit StrictBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return Add(Json(value)) != nullptr; }
  bool number_integer(int64_t value) override { return Add(Json(value)) != nullptr; }
  bool number_unsigned(uint64_t value) override { return Add(Json(value)) != nullptr; }
  bool number_float(double value, const std::string& text) override {
    if constexpr (std::is_same_v<Json, ExactJson>) {
      return Add(Json::binary({text.begin(), text.end()})) != nullptr;
    }
    return Add(Json(value)) != nullptr;
  }
  bool string(std::string& value) override { return Add(Json(std::move(value))) != nullptr; }
  bool binary(typename Json::binary_t&) override { return Fail("binary value"); }
  bool start_object(size_t) override { return Begin(Json::object()); }
  bool start_array(size_t) override { return Begin(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    FOX_CHECK(!open_.empty() && open_.back().container->is_object());
    if (!open_.back().names.insert(name).second) return Fail("duplicate key " + Quoted(name));
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const bool is_large = error.id == 406;  // of a number
    return Fail(absl::StrCat(is_large ? "a number too large for a double" : "not valid JSON",
                             " near byte ", position));
  }

  const std::string& error() const { return error_; }
  Json Take() {
    FOX_CHECK(open_.empty() && error_.empty());
    return std::move(root_);
  }

 private:
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  // Only the innermost open container grows, so pointers to its ancestors stay valid.
  Json* Add(Json value) {
    if (++values_ > limits_.max_values) {
      Fail("too many JSON values");
      return nullptr;
    }
    if (open_.empty()) {
      FOX_CHECK(values_ == 1);  // a text has one value
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().container;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    auto& members = parent.template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, ExactJson>) {
      members.emplace_back(std::move(key_), std::move(value));  // no search: key() saw it is new
      return &members.back().second;
    } else {
      return &(members[std::move(key_)] = std::move(value));
    }
  }

  bool Begin(Json container) {
    if (open_.size() >= limits_.max_depth) return Fail("JSON nested too deeply");
    Json* added = Add(std::move(container));
    if (added == nullptr) return false;
    open_.push_back({added, {}});
    return true;
  }

  bool Close() {
    FOX_CHECK(!open_.empty());
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  struct Open {
    Json* container;
    std::unordered_set<std::string> names;
  };
  std::vector<Open> open_;
  std::string key_;
  size_t values_ = 0;
  std::string error_;
};

// `text` with double quotes around each NaN, Infinity and -Infinity outside of strings.
std::string WithQuotedNumbers(const std::string& text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    size_t length = 1;
    if (in_string) {
      if (text[i] == '\\') length = 2;
      if (text[i] == '"') in_string = false;
    } else if (text[i] == '"') {
      in_string = true;
    } else {
      for (const std::string word : {"-Infinity", "Infinity", "NaN"}) {
        if (text.compare(i, word.size(), word) != 0) continue;
        absl::StrAppend(&out, "\"", word, "\"");
        i += word.size();
        length = 0;
        break;
      }
    }
    out.append(text, i, length);
    i += length;
  }
  return out;
}

template <typename Json>
absl::StatusOr<Json> Read(const std::string& text, const JsonLimits& limits,
                          const std::string& what) {
  if (text.size() > limits.max_bytes) {
    return InvalidFile(what, absl::StrCat("larger than ", limits.max_bytes, " bytes"));
  }
  // The parser takes NUL for the end of its input, and would accept whatever follows.
  if (text.find('\0') != std::string::npos) {
    return InvalidFile(what, "not valid JSON: NUL byte");
  }
  StrictBuilder<Json> builder(limits);
  if (!Json::sax_parse(limits.python_numbers ? WithQuotedNumbers(text) : text, &builder))
    return InvalidFile(what, builder.error());
  return builder.Take();
}

}  // namespace

absl::StatusOr<Json> ReadJson(const std::string& text, const JsonLimits& limits,
                              const std::string& what) {
  return Read<Json>(text, limits, what);
}

absl::StatusOr<ExactJson> ReadExactJson(const std::string& text, const JsonLimits& limits,
                                        const std::string& what) {
  return Read<ExactJson>(text, limits, what);
}

std::string TextOf(const ExactJson& json, bool spaced) {
  if (json.is_binary()) return {json.get_binary().begin(), json.get_binary().end()};
  if (!json.is_structured()) return json.dump();
  std::string out;
  for (const auto& [name, value] : json.items()) {
    if (!out.empty()) out += spaced ? ", " : ",";
    if (json.is_object()) {
      absl::StrAppend(&out, ExactJson(name).dump(), spaced ? ": " : ":");
    }
    out += TextOf(value, spaced);
  }
  return json.is_object() ? absl::StrCat("{", out, "}") : absl::StrCat("[", out, "]");
}

double NumberOf(const ExactJson& json) {
  if (json.is_number()) return json.get<double>();
  if (!json.is_binary()) return std::numeric_limits<double>::quiet_NaN();
  return std::strtod(TextOf(json, false).c_str(), nullptr);
}

absl::StatusOr<Json> ReadJsonObject(const std::string& text, const JsonLimits& limits,
                                    const std::string& what) {
  absl::StatusOr<Json> json = ReadJson(text, limits, what);
  if (json.ok() && !json->is_object()) return InvalidFile(what, "not a JSON object");
  return json;
}

void KeyReader::Invalid(const std::string& key, const std::string& problem) {
  if (status_.ok()) status_ = InvalidFile(file_, absl::StrCat(key, " ", problem));
}

void KeyReader::Unsupported(const std::string& key, const std::string& problem) {
  if (status_.ok()) {
    status_ = absl::UnimplementedError(absl::StrCat(file_, ": ", key, " ", problem));
  }
}

const Json* KeyReader::Find(const std::string& key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int64_t KeyReader::IntegerOf(const std::string& key, const Json& value, int64_t low, int64_t high) {
  FOX_CHECK(low <= high);
  if (!value.is_number_integer()) {
    Invalid(key, "must be an integer");
    return low;
  }
  // An unsigned value above int64 must not wrap into the range.
  const bool huge =
      value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (huge || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    Invalid(key, absl::StrCat("must be between ", low, " and ", high));
    return low;
  }
  return value.get<int64_t>();
}

std::optional<int64_t> KeyReader::OptionalInteger(const std::string& key, int64_t low,
                                                  int64_t high) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return IntegerOf(key, *value, low, high);
}

// NaN and infinity cannot be written in JSON; a number that overflows double does not parse.
std::optional<double> KeyReader::OptionalNumber(const std::string& key) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  Invalid(key, "must be a number");
  return std::nullopt;
}

std::vector<int64_t> KeyReader::Integers(const std::string& key, int64_t low, int64_t high) {
  std::vector<int64_t> integers;
  const Json* value = Find(key);
  if (value == nullptr) return integers;
  if (!value->is_array()) return {IntegerOf(key, *value, low, high)};
  for (const Json& entry : *value) integers.push_back(IntegerOf(key, entry, low, high));
  return integers;
}

int64_t KeyReader::Integer(const std::string& key, int64_t fallback, int64_t low, int64_t high) {
  return Has(key) ? IntegerOf(key, object_[key], low, high) : fallback;
}

double KeyReader::Number(const std::string& key, double fallback) {
  if (Has(key) && object_[key].is_null()) Invalid(key, "must be a number");
  return OptionalNumber(key).value_or(fallback);
}

bool KeyReader::Bool(const std::string& key, bool fallback) {
  if (!Has(key)) return fallback;
  if (object_[key].is_boolean()) return object_[key].get<bool>();
  Invalid(key, "must be true or false");
  return fallback;
}

std::string KeyReader::String(const std::string& key, const std::string& fallback) {
  if (!Has(key)) return fallback;
  if (object_[key].is_string()) return object_[key].get<std::string>();
  Invalid(key, "must be a string");
  return fallback;
}

void KeyReader::RefuseUnlessNull(const std::string& key) {
  if (Find(key) != nullptr) Unsupported(key, "is not supported: it must be null or absent");
}

}  // namespace fox
