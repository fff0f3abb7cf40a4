// HTTP errors: a status as an answer in OpenAI's form, with the HTTP code that fits.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/http/port/http_exchange.h"

namespace fox {

// 200 for Ok; 499 for Cancelled: it is not read.
int HttpStatusOf(absl::StatusCode code);

// {"error": {"message", "type", "param", "code"}}: `status` names the field at its start, as
// "top_p: must be in (0, 1]"; names of fox.v1 are replaced by the HTTP API's.
std::string ErrorBody(const absl::Status& status);

// The whole answer. `retry_after_ms`: with 429 and 503, when to come back; 0: not said. `body`: in
// an API's own form, else ErrorBody. `headers`: more of them.
HttpAnswer ErrorAnswer(const absl::Status& status, int64_t retry_after_ms = 0);
HttpAnswer ErrorAnswer(const absl::Status& status, std::string body, int64_t retry_after_ms,
                       const HttpHeaders& headers = {});

// For HTTP statuses without a status of ours: 405, 408, 413. `code`: null for none.
HttpAnswer ErrorAnswer(int http_status, absl::string_view message, const char* code = nullptr);

// Codes of OpenAI's errors.
inline constexpr char kModelNotFound[] = "model_not_found";
inline constexpr char kUnknownUrl[] = "unknown_url";

// `text` as a JSON string, ill-formed UTF-8 replaced.
std::string JsonString(absl::string_view text);

// `value` as a JSON number; null if it is not finite.
std::string JsonNumber(float value);
// Like JsonNumber, with all digits: for a bound that rounding must not lower.
std::string JsonBound(float value);

}  // namespace fox
