// Strict JSON for files from outside: bounded size, depth and number of values, duplicate keys
// refused (if a later key silently wins, two readers can disagree about one file). ExactJson keeps
// the digits of numbers that a double would round, for JSON that goes on to another reader.
// KeyReader reads the keys of a configuration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace fox {

struct JsonLimits {
  size_t max_bytes = 0;
  size_t max_depth = 0;   // of nested arrays and objects
  size_t max_values = 0;  // of any kind; bounds the memory of the result
  // True: NaN, Infinity and -Infinity, which Python writes and JSON lacks, are read as strings of
  // these names, so that only a key that must be a number refuses them. False: malformed.
  bool python_numbers = false;
};

// Parses all of `text`. InvalidArgument errors begin with `what`, a file name.
absl::StatusOr<nlohmann::json> ReadJson(const std::string& text, const JsonLimits& limits,
                                        const std::string& what);
// ReadJson, which also refuses a value that is not an object.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& text, const JsonLimits& limits,
                                              const std::string& what);

// JSON in the order of its text. A number that is no integer of 64 bits is a binary value: its
// text.
using ExactJson = nlohmann::ordered_json;
absl::StatusOr<ExactJson> ReadExactJson(const std::string& text, const JsonLimits& limits,
                                        const std::string& what);
// On one line, numbers as they were written (but 0 for -0), with the spaces of Python's json.dumps
// or without.
std::string TextOf(const ExactJson& json, bool spaced);
// The nearest double of a number; NaN for other values.
double NumberOf(const ExactJson& json);

// Typed reads of one JSON object with a sticky first error, which names the file and the key; after
// an error every read returns its fallback.
class KeyReader {
 public:
  KeyReader(const nlohmann::json& object, std::string file)
      : object_(object), file_(std::move(file)) {}

  const absl::Status& status() const { return status_; }
  void Invalid(const std::string& key, const std::string& problem);
  void Unsupported(const std::string& key, const std::string& problem);

  bool Has(const std::string& key) const { return object_.contains(key); }
  // The value of `key`. Null if the key is absent or its value is null; for the optional reads, no
  // value.
  const nlohmann::json* Find(const std::string& key) const;
  std::optional<int64_t> OptionalInteger(const std::string& key, int64_t low, int64_t high);
  std::optional<double> OptionalNumber(const std::string& key);
  // The value of `key`, one integer or a list of them. Empty if absent or null.
  std::vector<int64_t> Integers(const std::string& key, int64_t low, int64_t high);

  // The value of `key`, or `fallback` if the key is absent. A null is of the wrong type.
  int64_t Integer(const std::string& key, int64_t fallback, int64_t low, int64_t high);
  double Number(const std::string& key, double fallback);
  bool Bool(const std::string& key, bool fallback);
  std::string String(const std::string& key, const std::string& fallback);

  void RefuseUnlessNull(const std::string& key);

 private:
  int64_t IntegerOf(const std::string& key, const nlohmann::json& value, int64_t low, int64_t high);

  const nlohmann::json& object_;
  std::string file_;
  absl::Status status_;
};

}  // namespace fox
