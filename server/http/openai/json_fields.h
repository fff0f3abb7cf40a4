// JsonFields: a client's JSON object, read field by field with types and ranges checked. An absent
// field and null are the same: not set. Schemas and arguments of calls keep the order of their
// names and the digits of their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/checkpoint/json_reader.h"
#include "server/calls/conversion/request_conversion.h"

namespace fox {

// The first error (InvalidArgument, "NAME: must be ...") stays; after it nothing is set.
class JsonFields {
 public:
  explicit JsonFields(ExactJson object) : object_(std::move(object)) {}
  // Bounded in depth and in number of values. InvalidArgument: not JSON, or not an object.
  static absl::StatusOr<JsonFields> Parse(const std::string& body);

  // Null: not set.
  const ExactJson* Find(const char* name);
  std::optional<bool> Bool(const char* name);
  std::optional<int64_t> Int(const char* name, int64_t low, int64_t high);
  std::optional<float> Float(const char* name);
  std::optional<std::string> String(const char* name);
  // One string, or a list of at most `max_strings`; an error otherwise, and nothing is copied.
  std::vector<std::string> Strings(const char* name, size_t max_strings);
  std::vector<uint32_t> Ids(const char* name);
  // The object of a field; an empty one: it is not set, or the field has failed.
  JsonFields Object(const char* name);

  // The names asked for so far, and the object itself: so a route finds the fields that no code has
  // read.
  const std::set<std::string>& asked() const { return asked_; }
  const ExactJson& object() const { return object_; }

  const absl::Status& status() const { return status_; }
  void Fail(const char* name, absl::string_view must_be);
  // Takes over an error inside of the field: "NAME.THEIRS".
  void FailWithin(const char* name, const absl::Status& status);

 private:
  ExactJson object_;
  std::set<std::string> asked_;
  absl::Status status_;
};

// Parses the body of a request of any route. NotFound: it names a model that is not served.
absl::StatusOr<JsonFields> ReadBody(const std::string& body, const ConversionContext& context);

// The place of a JSON object in a body.
enum class FieldPlace {
  kBody,
  kMessage,
  kPart,
  kFormat,
  kSchema,
  kStreamOptions,
  // Of Anthropic's Messages.
  kMessagesBody,
  kMessagesTurn,
  kMessagesBlock,
  kMessagesTool,
  kMessagesOutput,
  // Of OpenAI's Responses.
  kResponsesBody,
  kResponsesItem,
  kResponsesPart,
  kResponsesTool,
  kResponsesReasoning,
};

// Call after the fields of an object were read. InvalidArgument names a field that no code has
// read, and the field to send instead. Two kinds are ignored: fields that do not change the answer
// (a list in unread_fields.cc), and values that ask for nothing: null, "", [], {}, or the server's
// default.
absl::Status CheckUnreadFields(const JsonFields& fields, FieldPlace place = FieldPlace::kBody);

// The fields of a value of a list; none: it is no object.
JsonFields FieldsOf(const ExactJson& value);
// The first error in an object that has been read, or a field that no code has read: ".FIELD: ...".
absl::Status CheckFields(const JsonFields& fields, FieldPlace place);
// The error of a `type` that has no place here: ".type: ...". `known`: the types that have.
absl::Status UnknownType(const std::string& type, const char* known);
// An error inside of `place`, as "messages[2]": its message follows.
absl::Status Below(const std::string& place, const absl::Status& status);

// Converts a number. A number too large for a float becomes the largest float.
float ToFloat(const ExactJson& number);

// Token ids, each in 32 bits. False: `list` is something else.
bool ReadIds(const ExactJson& list, std::vector<uint32_t>* out);

}  // namespace fox
