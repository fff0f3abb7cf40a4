// HTTP errors: codes, names of fields, bodies. See http_error.h.
#include "server/http/port/http_error.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxMessageBytes = 1024;

const char* TypeOf(int http_status) {
  if (http_status == 401) return "authentication_error";
  if (http_status == 403) return "permission_error";
  if (http_status == 413) return "request_too_large";  // Anthropic's; OpenAI's API has none
  if (http_status == 429) return "rate_limit_error";
  return http_status >= 500 ? "server_error" : "invalid_request_error";
}

// The HTTP API has other names for these fields of fox.v1.
std::string WithOurNames(absl::string_view message) {
  static constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
      {"text: ", "prompt: "},
      {"token_ids.ids: ", "prompt: "},
      {"request_id: ", "x-request-id: "},
      {"output.prompt_logprobs: ", "logprobs: "},
      {"acp.mode: ", "acp: "},
  };
  for (const auto& [theirs, ours] : kNames) {
    if (absl::StartsWith(message, theirs)) return absl::StrCat(ours, message.substr(theirs.size()));
  }
  for (absl::string_view part : {"sampling.", "stopping.", "output.", "acp.", "cache."}) {
    if (absl::StartsWith(message, part)) return std::string(message.substr(part.size()));
  }
  return std::string(message);
}

// The field that a message names at its start.
Json FieldOf(const std::string& message) {
  const size_t colon = message.find(": ");
  if (colon == std::string::npos || colon == 0) return nullptr;
  const bool is_name =
      std::all_of(message.begin(), message.begin() + static_cast<int64_t>(colon), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
               c == '.' || c == '[' || c == ']';
      });
  if (!is_name) return nullptr;
  return message.substr(0, colon);
}

std::string Body(const std::string& message, const Json& field, int http_status, const Json& code) {
  const nlohmann::ordered_json body = {
      {"type", "error"},  // as clients of Anthropic's API expect
      {"error",
       {{"message", message}, {"type", TypeOf(http_status)}, {"param", field}, {"code", code}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json CodeOf(const absl::Status& status, const Json& field, int http_status) {
  if (field == "model" && http_status == 404) return kModelNotFound;
  if (status.code() == absl::StatusCode::kOutOfRange) return "context_length_exceeded";
  if (http_status == 429) return "rate_limit_exceeded";
  return nullptr;
}

}  // namespace

int HttpStatusOf(absl::StatusCode code) {
  using Code = absl::StatusCode;
  static constexpr std::pair<Code, int> kStatuses[] = {
      {Code::kOk, 200},
      {Code::kInvalidArgument, 400},
      {Code::kOutOfRange, 400},
      {Code::kFailedPrecondition, 400},
      {Code::kUnauthenticated, 401},
      {Code::kPermissionDenied, 403},
      {Code::kNotFound, 404},
      {Code::kAborted, 408},
      {Code::kAlreadyExists, 409},
      {Code::kResourceExhausted, 429},
      {Code::kCancelled, 499},
      {Code::kUnimplemented, 501},
      {Code::kUnavailable, 503},
      {Code::kDeadlineExceeded, 504},
  };
  for (const auto& [known, http_status] : kStatuses) {
    if (known == code) return http_status;
  }
  return 500;
}

std::string ErrorBody(const absl::Status& status) {
  std::string message = WithOurNames(status.message());
  if (message.size() > kMaxMessageBytes) message.resize(kMaxMessageBytes);
  const Json field = FieldOf(message);
  const int http_status = HttpStatusOf(status.code());
  return Body(message, field, http_status, CodeOf(status, field, http_status));
}

HttpAnswer ErrorAnswer(const absl::Status& status, int64_t retry_after_ms) {
  return ErrorAnswer(status, ErrorBody(status), retry_after_ms);
}

HttpAnswer ErrorAnswer(const absl::Status& status, std::string body, int64_t retry_after_ms,
                       const HttpHeaders& headers) {
  HttpAnswer answer;
  answer.status = HttpStatusOf(status.code());
  answer.headers = headers;
  answer.body = std::move(body);
  if (answer.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (retry_after_ms > 0 && (answer.status == 429 || answer.status == 503)) {
    answer.headers.emplace_back("Retry-After", absl::StrCat((retry_after_ms + 999) / 1000));
    answer.headers.emplace_back("Retry-After-Ms", absl::StrCat(retry_after_ms));
  }
  return answer;
}

HttpAnswer ErrorAnswer(int http_status, absl::string_view message, const char* code) {
  HttpAnswer answer;
  answer.status = http_status;
  const std::string text(message);
  answer.body = Body(text, FieldOf(text), http_status, code == nullptr ? Json() : Json(code));
  return answer;
}

std::string JsonString(absl::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string JsonBound(float value) {
  return std::isfinite(value) ? Json(static_cast<double>(value)).dump() : "null";
}

std::string JsonNumber(float value) { return std::isfinite(value) ? absl::StrCat(value) : "null"; }

}  // namespace fox
