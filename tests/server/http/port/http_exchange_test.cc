// Messages of an exchange: paths of targets, heads and chunks.
#include "server/http/port/http_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

using ::testing::MatchesRegex;

TEST(HttpExchangeTest, ATargetHasAPathAndAQuery) {
  struct Case {
    const char *target, *path, *query;
  };
  const Case cases[] = {
      {"/", "/", ""},
      {"/v1/models?x=1?y", "/v1/models", "x=1?y"},
      {"/v1/models/?x", "/v1/models", "x"},
      {"//", "/", ""},
      {"/a%20b%2?%41", "/a%20b%2", "%41"},
      {"http://host:80/v1/models?a", "/v1/models", "a"},
      {"http://host", "/", ""},
      {"Https://host?a", "/", "a"},
      {"/http://x", "/http://x", ""},
      {"*", "*", ""},
  };
  for (const Case& c : cases) {
    HttpRequest request;
    EXPECT_TRUE(SetTarget(c.target, &request)) << c.target;
    EXPECT_EQ(request.path, c.path) << c.target;
    EXPECT_EQ(request.query, c.query) << c.target;
  }
}

TEST(HttpExchangeTest, OtherTargetsAreNone) {
  for (const char* target : {"", "v1/models", "host:80", "**", "ftp://host/", "://host/", "http:/x",
                             "http:///x", "http://", "http://a@host/", "xhttp://host/"}) {
    HttpRequest request;
    EXPECT_FALSE(SetTarget(target, &request)) << target;
  }
}

// RFC 9112, 3.2.2.
TEST(HttpExchangeTest, TheHostOfATargetIsTheRequests) {
  HttpRequest request;
  request.headers = {{"host", "a"}, {"x", "y"}};
  ASSERT_TRUE(SetTarget("http://b:80/x", &request));
  EXPECT_EQ(request.Header("host"), "b:80");
  EXPECT_EQ(request.Header("host", 1), "");
  EXPECT_EQ(request.Header("x"), "y");
}

TEST(HttpExchangeTest, PercentEncodings) {
  const std::pair<const char*, const char*> cases[] = {
      {"a%20b%2", "a b%2"}, {"%zz%", "%zz%"}, {"%41%2F%2f%c3%A9", "A//\xc3\xa9"}, {"+", "+"}};
  for (const auto& [encoded, text] : cases) EXPECT_EQ(PercentDecoded(encoded), text);
}

TEST(HttpExchangeTest, AHeadSaysHowItsBodyEnds) {
  const HttpAnswer answer{404, "text/plain", {{"X-A", "b"}}, "12345"};
  const std::pair<BodyFraming, const char*> framings[] = {
      {BodyFraming::kLength, "Content-Length: 5\r\n\r\n"},
      {BodyFraming::kChunked, "Transfer-Encoding: chunked\r\n\r\n"},
      {BodyFraming::kClose, "Connection: close\r\n\r\n"}};
  for (const auto& [framing, end] : framings) {
    EXPECT_THAT(AnswerHead(answer, framing),
                MatchesRegex(absl::StrCat("HTTP/1.1 404 Not Found\r\nDate: ..., [^\r]* GMT\r\n"
                                          "Content-Type: text/plain\r\n"
                                          "X-Content-Type-Options: nosniff\r\nX-A: b\r\n",
                                          end)));
  }
  EXPECT_EQ(Chunk(std::string(26, 'a')), "1a\r\n" + std::string(26, 'a') + "\r\n");
  EXPECT_EQ(Chunk(""), "");  // would end the body
}

}  // namespace
}  // namespace fox
