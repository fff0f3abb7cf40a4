// HttpParser: heads before their bodies, and bytes that are no request. Pieces of every size:
// tests/fuzz/server/http_parser_fuzzer.cc.
#include "server/http/port/http_parser.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

using Step = HttpParser::Step;

TEST(HttpParserTest, TheHeadIsToldBeforeItsBody) {
  HttpParser parser(1000);
  EXPECT_FALSE(parser.begun());
  std::string in = "POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nab";
  EXPECT_EQ(parser.Advance(&in), Step::kHead);
  EXPECT_TRUE(parser.begun());
  EXPECT_FALSE(parser.whole());
  EXPECT_TRUE(parser.old_client());
  EXPECT_FALSE(parser.keep_alive());
  EXPECT_EQ(parser.Advance(&in), Step::kMore);
  EXPECT_EQ(parser.body_bytes(), 2u);
  in += "cGET";
  EXPECT_EQ(parser.Advance(&in), Step::kWhole);
  EXPECT_EQ(in, "GET");
}

TEST(HttpParserTest, LimitsHoldWithoutWaitingForTheEnd) {
  const std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string many = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (int i = 0; i < 170; ++i) many += "X: " + std::string(95, 'x') + "\r\n";
  const std::pair<std::string, int> cases[] = {
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", 413},
      {"GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(17000, 'x'), 431},
      {"GET /" + std::string(17000, 'x'), 431},
      {many + "\r\n", 431},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", 400},  // one blank line may come before
      {chunked + "1;e=" + std::string(17000, 'x'), 431},
      {chunked + "0\r\nT: " + std::string(17000, 'x'), 431},
      {chunked + "0\r\nT: " + std::string(70000, 'x') + "\r\n\r\n", 431},
  };
  for (const auto& [bytes, status] : cases) {
    HttpParser parser(1000);
    std::string in = bytes;
    Step step = parser.Advance(&in);
    while (step == Step::kHead) step = parser.Advance(&in);
    EXPECT_EQ(step, Step::kRefused) << bytes.substr(0, 80);
    EXPECT_EQ(parser.refusal().status, status) << bytes.substr(0, 80);
  }
}

// RFC 9112, 9.3.
TEST(HttpParserTest, WhichConnectionsAreKept) {
  const std::pair<const char*, bool> cases[] = {
      {"1.1\r\n", true},
      {"1.1\r\nConnection: close\r\n", false},
      {"1.1\r\nConnection: x, Close\r\n", false},
      {"1.1\r\nConnection: keep-alive, close\r\n", false},
      {"1.0\r\n", false},
      {"1.0\r\nConnection: keep-alive\r\n", true},
      {"1.0\r\nConnection: x, Keep-Alive\r\n", true},
      {"1.0\r\nConnection: close, keep-alive\r\n", false},
      {"1.0\r\nConnection: keep-alive\r\nConnection: close\r\n", false},
      {"1.0\r\nConnection: closed, keep-alive\r\n", true},
  };
  for (const auto& [version, kept] : cases) {
    HttpParser parser(1000);
    std::string in = absl::StrCat("GET / HTTP/", version, "Host: h\r\n\r\n");
    EXPECT_EQ(parser.Advance(&in), Step::kHead) << version;
    EXPECT_EQ(parser.keep_alive(), kept) << version;
  }
}

TEST(HttpParserTest, WhoseEndAProxyMaySeeElsewhereIsRefused) {
  for (const std::string framing : {
           "1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
           "1.1\r\nTransfer-Encoding: gzip, chunked",
           "1.1\r\nTransfer-Encoding: chunked, gzip",
           "1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
           "1.1\r\nTransfer-Encoding: xchunked\r\nContent-Length: 3",
           "1.1\r\nTransfer-Encoding: identity\r\nContent-Length: 3",
           "1.0\r\nTransfer-Encoding: chunked",
           "1.1\r\nContent-Length: 3\r\nContent-Length: 3",
           "1.1\r\nContent-Length: 3, 3",
           "1.1\r\nContent-Length: +3",
           "1.1\r\nTransfer-Encoding:\r\n chunked",
           "1.1\r\nContent-Length:\r\n\t3",
           "1.1\r\nContent-Length: 3\r\nAuthorization: Bearer\r\n a",
           "1.1\r\n Transfer-Encoding: chunked",
           "1.1\r\nContent-Length: 3\r\nX: y\r\n \r\n\t",
           "1.1\r\nContent-Length:\n 3",
       }) {
    const std::string bytes = "POST / HTTP/" + framing + "\r\nHost: h\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    HttpParser parser(1000);
    std::string in = bytes;
    EXPECT_EQ(parser.Advance(&in), Step::kRefused) << framing;
    EXPECT_EQ(parser.refusal().status, 400) << framing;
  }
}

}  // namespace
}  // namespace fox
