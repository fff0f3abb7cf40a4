// HTTP errors: codes, names of fields, and when to come back.
#include "server/http/port/http_error.h"

#include <gtest/gtest.h>

#include <limits>

#include "nlohmann/json.hpp"

namespace fox {
namespace {

using Json = nlohmann::json;

Json Error(const absl::Status& status) { return Json::parse(ErrorBody(status))["error"]; }

TEST(HttpErrorTest, FieldsHaveTheNamesOfThisApi) {
  const std::pair<const char*, const char*> cases[] = {
      {"sampling.top_p: must be in (0, 1]", "top_p"},
      {"stopping.stop: at most 16 strings", "stop"},
      {"output.logprobs: must be in [0, 20]", "logprobs"},
      {"output.prompt_logprobs: must be in [0, 20]", "logprobs"},
      {"text: the prompt is empty", "prompt"},
      {"token_ids.ids: id 9 is not in the vocabulary of 5", "prompt"},
      {"request_id: must be", "x-request-id"},
      {"acp.mode: must be OFF or the server's", "acp"},
      {"acp.log_tolerance: must be finite", "log_tolerance"},
      {"cache.cache_salt: at most 256 bytes", "cache_salt"},
  };
  for (const auto& [message, field] : cases) {
    SCOPED_TRACE(message);
    const Json error = Error(absl::InvalidArgumentError(message));
    EXPECT_EQ(error["param"], field);
    EXPECT_EQ(std::string(error["message"]).find(std::string(field) + ": "), 0u) << error;
    EXPECT_EQ(error["type"], "invalid_request_error");
  }
  EXPECT_TRUE(Error(absl::InternalError("No field: here"))["param"].is_null());
  EXPECT_TRUE(Error(absl::InternalError("nothing"))["param"].is_null());
}

TEST(HttpErrorTest, EachStatusHasItsCodeAndType) {
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kOutOfRange), 400);
  EXPECT_EQ(Error(absl::OutOfRangeError("prompt: too long"))["code"], "context_length_exceeded");
  EXPECT_EQ(Error(absl::NotFoundError("model: not served here"))["code"], "model_not_found");
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kAborted), 408);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kAlreadyExists), 409);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kUnknown), 500);
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kUnavailable), 503);
  EXPECT_EQ(Error(absl::UnavailableError("x"))["type"], "server_error");
  EXPECT_EQ(ErrorAnswer(absl::UnauthenticatedError("x")).headers[0].first, "WWW-Authenticate");
}

TEST(HttpErrorTest, APathHasACodeOfItsOwn) {
  const Json error = Json::parse(ErrorAnswer(404, "no such path", kUnknownUrl).body)["error"];
  EXPECT_EQ(error["code"], "unknown_url");
  EXPECT_TRUE(Json::parse(ErrorAnswer(408, "late").body)["error"]["code"].is_null());
}

TEST(HttpErrorTest, OnlyWhatMayComeBackIsToldWhen) {
  const HttpAnswer full = ErrorAnswer(absl::ResourceExhaustedError("full"), 1500);
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.headers, (HttpHeaders{{"Retry-After", "2"}, {"Retry-After-Ms", "1500"}}));
  EXPECT_TRUE(ErrorAnswer(absl::InvalidArgumentError("x"), 1500).headers.empty());
}

TEST(HttpErrorTest, MessagesAreShortAndAlwaysJson) {
  const Json error = Error(absl::InternalError("\xff" + std::string(5000, 'a')));
  EXPECT_LT(std::string(error["message"]).size(), 1030u);
  EXPECT_EQ(JsonNumber(-10.5F), "-10.5");
  EXPECT_EQ(JsonNumber(-std::numeric_limits<float>::infinity()), "null");
  EXPECT_EQ(JsonString("a\"\n\xff"), "\"a\\\"\\n\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace fox
