// ReadJson: a SAX handler that builds the document and enforces the limits while it parses.
#include "models/json_reader.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/error_text.h"

namespace fox {
namespace {

using Json = nlohmann::json;

class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit StrictBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return Add(Json(value)) != nullptr; }
  bool number_integer(int64_t value) override { return Add(Json(value)) != nullptr; }
  bool number_unsigned(uint64_t value) override { return Add(Json(value)) != nullptr; }
  bool number_float(double value, const std::string&) override {
    return Add(Json(value)) != nullptr;
  }
  bool string(std::string& value) override { return Add(Json(std::move(value))) != nullptr; }
  bool binary(Json::binary_t&) override { return Fail("binary value"); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    if (open_.back()->contains(name)) return Fail("duplicate key " + Quoted(name));
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Fail(absl::StrCat("not valid JSON near byte ", position));
  }

  const std::string& error() const { return error_; }
  Json Take() { return std::move(root_); }

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
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool Open(Json container) {
    if (open_.size() >= limits_.max_depth) return Fail("JSON nested too deeply");
    Json* added = Add(std::move(container));
    if (added == nullptr) return false;
    open_.push_back(added);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  size_t values_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ReadJson(const std::string& text, const JsonLimits& limits,
                              const std::string& what) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": larger than ", limits.max_bytes, " bytes"));
  }
  // The parser takes NUL for the end of its input, and would accept whatever follows.
  if (text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": not valid JSON: NUL byte"));
  }
  StrictBuilder builder(limits);
  if (!Json::sax_parse(text, &builder)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", builder.error()));
  }
  return builder.Take();
}

}  // namespace fox
