// HTTP messages: paths of targets, heads and chunks.
#include <gtest/gtest.h>

#include "server/http/http_exchange.h"

namespace fox {
namespace {

TEST(HttpMessageTest, ATargetHasAPathAndAQuery) {
  struct Case {
    const char *target, *path, *query;
  };
  const Case cases[] = {
      {"/", "/", ""},
      {"/v1/models?x=1?y", "/v1/models", "x=1?y"},
      {"/v1/models/?x", "/v1/models", "x"},
      {"//", "/", ""},
      {"/a%20b%2", "/a b%2", ""},
      {"/%zz", "/%zz", ""},
      {"http://host:80/v1/models?a", "/v1/models", "a"},
      {"http://host", "/", ""},
      {"/http://x", "/http://x", ""},
      {"*", "*", ""},
  };
  for (const Case& c : cases) {
    HttpRequest request;
    SetTarget(c.target, &request);
    EXPECT_EQ(request.path, c.path) << c.target;
    EXPECT_EQ(request.query, c.query) << c.target;
  }
}

TEST(HttpMessageTest, AHeadSaysHowItsBodyEnds) {
  HttpAnswer answer{404, "text/plain", {{"X-A", "b"}}, "12345"};
  EXPECT_EQ(AnswerHead(answer, BodyFraming::kLength),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n"
            "X-Content-Type-Options: nosniff\r\nX-A: b\r\n"
            "Content-Length: 5\r\n\r\n");
  answer.headers.clear();
  EXPECT_EQ(AnswerHead(answer, BodyFraming::kChunked),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n"
            "X-Content-Type-Options: nosniff\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(AnswerHead(answer, BodyFraming::kClose),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n");
}

TEST(HttpMessageTest, NoBytesAreNoChunk) {
  EXPECT_EQ(Chunk(std::string(26, 'a')), "1a\r\n" + std::string(26, 'a') + "\r\n");
  EXPECT_EQ(Chunk(""), "");  // would end the body
}

TEST(HttpMessageTest, HeadersAreFoundByName) {
  HttpRequest request;
  request.headers = {{"a", "1"}, {"b", "2"}, {"a", "3"}};
  EXPECT_EQ(request.Header("a"), "1");
  EXPECT_EQ(request.Header("c"), "");
}

}  // namespace
}  // namespace fox
