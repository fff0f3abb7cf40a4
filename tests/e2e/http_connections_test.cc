// Connections to the HTTP port with requests that are malformed, slow, too large, pipelined,
// abandoned or not read, and many connections at once. Each ends with an answer or within a time
// limit, and all that it held is free afterwards.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr char kPath[] = "/v1/completions";
constexpr double kShort = 0.3;  // seconds
const std::string kTokenize =
    "POST /tokenize HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n";

std::string Body(const std::string& prompt, int max_tokens, bool stream) {
  return Json({{"prompt", prompt},
               {"max_tokens", max_tokens},
               {"temperature", 0},
               {"stream", stream}})
      .dump();
}

HttpServerOptions Impatient() {
  HttpServerOptions options;
  options.port.head_timeout = options.port.body_timeout = kShort;
  options.port.idle_timeout = kShort;
  options.port.max_body_bytes = 100000;
  return options;
}

TEST(HttpConnectionsTest, MalformedRequestsAreRefused) {
  TestServer test;
  const std::pair<const char*, int> cases[] = {
      {"GARBAGE\r\n\r\n", 400},
      {"GET / HTTP/9.9\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1000\r\n\r\n", 400},
      {"GET /nothing HTTP/1.1\r\nHost: [::1]\r\n\r\n", 404},
      {"DELETE /health HTTP/1.1\r\nHost: [::1]\r\n\r\n", 405},
      {"OPTIONS * HTTP/1.1\r\nHost: [::1]\r\n\r\n", 404},
      {"GET ftp://[::1]/health HTTP/1.1\r\nHost: [::1]\r\n\r\n", 400},
      {"GET health HTTP/1.1\r\nHost: [::1]\r\n\r\n", 400},
      {"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 400},
      {"GET /%68ealth HTTP/1.1\r\nHost: [::1]\r\n\r\n", 404},
      {"POST /tokenize HTTP/1.1\r\nHost: [::1]\r\nContent-Type: text/plain\r\n"
       "Content-Length: 2\r\n\r\n{}",
       415},
      {"POST /tokenize HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 2\r\n\r\n{}", 415},
      {"POST /tokenize HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/jsonx\r\n"
       "Content-Length: 2\r\n\r\n{}",
       415},
  };
  for (const auto& [bytes, status] : cases) {
    HttpClient client = test.ConnectHttp();
    client.Send(bytes);
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, status) << bytes;
    EXPECT_EQ(reply.Json()["error"]["type"], "invalid_request_error") << bytes;
  }
  HttpClient wrong = test.ConnectHttp();
  EXPECT_EQ(wrong.Get("/nothing").status, 404);
  EXPECT_EQ(wrong.Get("/health").status, 200);  // on the same connection
}

// A page whose name was made to resolve to this machine (DNS rebinding).
TEST(HttpConnectionsTest, APageOfAnotherNameGetsNothing) {
  TestServer test;
  const auto answer = [&](const std::string& host, const std::string& path) {
    HttpClient client = test.ConnectHttp();
    client.Send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.Read();
  };
  for (const char* path : {"/v1/models", "/version", "/health", "/tokenizer_info", "/nothing"}) {
    for (const char* host : {"elsewhere.example", "elsewhere.example:8000", "localhost.example"}) {
      const HttpReply refused = answer(host, path);
      EXPECT_EQ(refused.status, 403) << host << path;
      EXPECT_TRUE(absl::StrContains(refused.ErrorMessage(), "--allowed-hosts")) << host << path;
    }
  }
  for (const char* host : {"localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000"}) {
    EXPECT_EQ(answer(host, "/v1/models").status, 200) << host;
  }
  // RFC 9112, 3.2.2: the target's host replaces the header's.
  EXPECT_EQ(answer("localhost", "http://elsewhere.example/health").status, 403);
  EXPECT_EQ(answer("elsewhere.example", "http://localhost/health").status, 200);
}

// https://fetch.spec.whatwg.org/#http-cors-protocol: the page of an origin that is not listed gets
// no header, and its browser keeps the answer from it.
TEST(HttpConnectionsTest, PagesOfListedOriginsMayUseThePort) {
  struct Case {
    std::vector<std::string> origins;
    const char* origin;
    bool allowed;
  };
  const Case cases[] = {{{}, "https://a.example", false},
                        {{"https://a.example", "null"}, "https://a.example", true},
                        {{"https://a.example"}, "HTTPS://A.example", true},
                        {{"https://a.example"}, "https://b.example", false},
                        {{"https://a.example"}, "http://a.example", false},
                        {{"https://a.example"}, "https://a.example:444", false},
                        {{"https://a.example"}, "null", false},
                        {{"*"}, "https://b.example", true}};
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.origin, " among ", absl::StrJoin(c.origins, " ")));
    HttpServerOptions options;
    options.cors_origins = c.origins;
    TestServer test({}, options);
    HttpClient client = test.ConnectHttp();
    const std::string from = absl::StrCat(" HTTP/1.1\r\nHost: [::1]\r\nOrigin: ", c.origin, "\r\n");
    const auto allowed = [&](const HttpReply& reply) {
      const auto found = reply.headers.find("access-control-allow-origin");
      return found == reply.headers.end() ? "" : found->second;
    };
    const std::string wanted = c.allowed ? c.origin : "";
    client.Send(
        absl::StrCat("OPTIONS /v1/completions", from,
                     "Access-Control-Request-Method: POST\r\n"
                     "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n"));
    const HttpReply asked = client.Read();
    EXPECT_EQ(asked.status, c.allowed ? 200 : 405);
    EXPECT_EQ(allowed(asked), wanted);
    if (c.allowed) {
      EXPECT_EQ(asked.headers.at("access-control-allow-headers"), "authorization,x-stainless-os");
      EXPECT_EQ(asked.headers.at("access-control-allow-methods"), "POST");
    }
    client.SendRequest("POST", "/v1/completions",
                       R"({"prompt": "a", "max_tokens": 2, "stream": true})",
                       absl::StrCat("Origin: ", c.origin, "\r\n"));
    const HttpReply streamed = client.Read();
    EXPECT_EQ(streamed.status, 200);
    EXPECT_EQ(allowed(streamed), wanted);
    client.Send(absl::StrCat("GET /nothing", from, "\r\n"));
    EXPECT_EQ(allowed(client.Read()), wanted);
    client.Send("OPTIONS /v1/completions HTTP/1.1\r\nHost: [::1]\r\n\r\n");
    const HttpReply plain = client.Read();
    EXPECT_EQ(plain.status, 405);
    EXPECT_EQ(allowed(plain), "");
  }
}

TEST(HttpConnectionsTest, TooLargeRequestsAreRefusedBeforeTheyHaveArrived) {
  TestServer test({}, Impatient());
  HttpClient body = test.ConnectHttp(), chunked = test.ConnectHttp(), head = test.ConnectHttp();
  body.Send(kTokenize + "Content-Length: 100001\r\n\r\n");
  EXPECT_EQ(body.Read().status, 413);
  EXPECT_TRUE(body.AtEnd());
  chunked.Send(kTokenize + "Transfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = absl::StrCat("4e20\r\n", std::string(20000, 'a'), "\r\n");
  for (int i = 0; i < 6; ++i) chunked.Send(chunk);
  EXPECT_EQ(chunked.Read().status, 413);
  head.Send("GET /health HTTP/1.1\r\nHost: [::1]\r\nX: " + std::string(20000, 'x'));
  EXPECT_EQ(head.Read().status, 431);
  HttpClient fits = test.ConnectHttp();
  fits.SendRequest("POST", "/tokenize", Json({{"prompt", std::string(60000, 'a')}}).dump());
  EXPECT_EQ(fits.Read().Json()["count"], 60001);
}

TEST(HttpConnectionsTest, SlowRequestsAreCutOff) {
  TestServer test({}, Impatient());
  HttpClient head = test.ConnectHttp(), body = test.ConnectHttp(), silent = test.ConnectHttp(),
             idle = test.ConnectHttp();
  const auto start = Clock::now();
  head.Send("GET /hea");
  body.Send(kTokenize + "Content-Length: 100\r\n\r\n{");
  EXPECT_EQ(idle.Get("/health").status, 200);
  std::thread dripping([&] {  // single bytes do not extend the limit
    for (int i = 0; i < 40 && head.Send("x") && body.Send(" "); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  EXPECT_EQ(head.Read().status, 408);
  EXPECT_EQ(body.Read().status, 408);
  EXPECT_TRUE(silent.AtEnd());
  EXPECT_TRUE(idle.AtEnd());
  const std::chrono::duration<double> taken = Clock::now() - start;
  EXPECT_GE(taken.count(), kShort);
  EXPECT_LT(taken.count(), 5);
  dripping.join();
}

TEST(HttpConnectionsTest, PipelinedRequestsAreAnsweredInOrder) {
  TestServer test;
  HttpClient client = test.ConnectHttp();
  constexpr int kRequests = 80;  // less than the connection's buffer holds
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) {
      client.SendRequest("POST", "/tokenize",
                         Json({{"prompt", std::string(static_cast<size_t>(i), 'a')}}).dump());
    }
  });
  for (int i = 0; i < kRequests; ++i) {
    const HttpReply reply = client.Read();
    ASSERT_EQ(reply.status, 200) << i;
    ASSERT_EQ(reply.Json()["count"], i + 1) << i;
  }
  sender.join();
}

TEST(HttpConnectionsTest, ChunkedBodiesExpectationsOldClientsAndHeads) {
  TestServer test;
  HttpClient client = test.ConnectHttp();
  client.Send(kTokenize +
              "Transfer-Encoding: chunked\r\n\r\n"
              "3;x=y\r\n{\"p\r\n10\r\nrompt\": \"hello\"}\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(client.Read().Json()["count"], 6);
  client.Send(kTokenize + "Expect: 100-continue\r\nContent-Length: 15\r\n\r\n");
  ASSERT_TRUE(client.ReadUntil("HTTP/1.1 100 Continue\r\n\r\n"));
  client.Send("{\"prompt\":\"abc\"}");
  EXPECT_EQ(client.Read().status, 400);  // 15 bytes end before the brace
  HttpClient head = test.ConnectHttp();
  head.Send("HEAD /health HTTP/1.1\r\nHost: [::1]\r\n\r\n");
  EXPECT_EQ(head.Read(/*head_only=*/true).headers.at("content-length"), "15");
  EXPECT_EQ(head.Get("/health").status, 200);
  HttpClient old = test.ConnectHttp();
  const std::string body = Body("hello", 20, true);
  old.Send(absl::StrCat("POST ", kPath,
                        " HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: ",
                        body.size(), "\r\n\r\n", body));
  const HttpReply reply = old.Read();
  EXPECT_EQ(reply.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(reply.headers.at("connection"), "close");  // marks the end of the body
  EXPECT_EQ(Events(reply.body).back(), "[DONE]");
  HttpClient kept = test.ConnectHttp();  // RFC 9112, 9.3: the answer says that it is kept
  for (int i = 0; i < 2; ++i) {
    kept.Send("GET /health HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    EXPECT_EQ(kept.Read().headers.at("connection"), "keep-alive");
  }
}

TEST(HttpConnectionsTest, AClientThatLeavesLeavesNothingBehind) {
  TestServer test;
  test.script->step_delay_us = 2000;
  for (bool stream : {false, true}) {
    for (bool reset : {false, true}) {
      SCOPED_TRACE(absl::StrCat("stream ", stream, ", reset ", reset));
      HttpClient client = test.ConnectHttp();
      client.SendRequest("POST", kPath, Body("hello", 3000, stream));
      ASSERT_TRUE(Eventually([&] { return test.engine->stats().running == 1; }));
      if (reset) {
        client.Reset();
      } else {
        client.Close();
      }
      EXPECT_TRUE(test.WaitIdle());
    }
  }
  EXPECT_EQ(test.engine->stats().cancelled, 4);
}

TEST(HttpConnectionsTest, BytesAfterARequestDoNotHideThatItsClientLeft) {
  TestServer test;
  test.script->step_delay_us = 2000;
  int64_t left = 0;
  for (const size_t behind : {size_t{20000}, size_t{200000}}) {
    for (const char* how : {"FIN", "RST", "stays"}) {
      SCOPED_TRACE(absl::StrCat(behind, " bytes, then ", how));
      HttpClient client = test.ConnectHttp();
      client.SendRequest("POST", kPath, Body("hello", 3000, false));
      ASSERT_TRUE(Eventually([&] { return test.engine->stats().running == 1; }));
      client.Send(std::string(behind, 'x'));
      if (how[0] == 'F') client.Close();
      if (how[0] == 'R') client.Reset();
      EXPECT_TRUE(test.WaitIdle());
      EXPECT_EQ(test.engine->stats().cancelled, ++left);
    }
  }
}

TEST(HttpConnectionsTest, AReaderThatStopsIsPausedAndThenCutOff) {
  TestCoreOptions options;
  options.limits.stall_timeout = 0.5;
  options.max_model_len = 1 << 20;
  TestServer test(options);
  HttpClient stalled = test.ConnectHttp(), other = test.ConnectHttp();
  const Json bulky = {{"prompt", "bulky"},
                      {"max_tokens", 60000},
                      {"temperature", 0},
                      {"logprobs", 20},
                      {"stream", true}};
  stalled.SendRequest("POST", kPath, bulky.dump());
  ASSERT_TRUE(Eventually([&] { return test.engine->stats().paused == 1; }));
  other.SendRequest("POST", kPath, Body("fast", 300, true));  // others go on
  EXPECT_EQ(Events(other.Read().body).back(), "[DONE]");
  EXPECT_TRUE(test.WaitIdle());  // the stalled one is gone
  EXPECT_EQ(test.core->calls().calls(), 0);
  EXPECT_EQ(test.core->calls().bytes(), 0);
  EXPECT_FALSE(stalled.ReadUntil("[DONE]"));
}

TEST(HttpConnectionsTest, UnreadAnswersHaveABudget) {
  TestCoreOptions options;
  options.limits.max_call_bytes = 96 << 10;  // half of it for one client
  TestServer test(options);
  Json bulky = {{"prompt", "bulky"}, {"max_tokens", 3000}, {"temperature", 0}, {"logprobs", 20}};
  HttpClient whole = test.ConnectHttp();
  EXPECT_EQ(whole.Post(kPath, bulky).status, 400);  // alone it is too large
  bulky["stream"] = true;
  HttpClient unread = test.ConnectHttp();  // sockets' buffers hold a part, the budget the rest
  unread.SendRequest("POST", kPath, bulky.dump());
  ASSERT_TRUE(unread.ReadUntil("data: "));
  EXPECT_TRUE(test.WaitIdle() || test.engine->stats().paused == 1);
  unread.Close();
  EXPECT_TRUE(test.WaitIdle());
  EXPECT_EQ(test.core->calls().bytes(), 0);
}

// On loopback each connection counts as a client.
TEST(HttpConnectionsTest, BodiesOnTheirWayHaveABudgetThatNoNewcomerFindsFull) {
  HttpServerOptions options;
  options.port.receive_memory_bytes = 180000;
  TestServer test({}, options);
  HttpClient large = test.ConnectHttp(), larger = test.ConnectHttp(), second = test.ConnectHttp();
  const std::string head = kTokenize + "Content-Length: 90000\r\n\r\n";
  large.Send(head + std::string(80000, ' '));
  larger.Send(head + std::string(85000, ' '));
  // When these are answered, the server has read the bodies.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(test.ConnectHttp().Get("/health").status, 200);
  second.Send(head + std::string(80000, ' '));
  const HttpReply refused = larger.Read();
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  const std::string rest = "{\"prompt\":\"a\"}";
  for (HttpClient* client : {&large, &second}) {
    client->Send(std::string(10000 - rest.size(), ' ') + rest);
    EXPECT_EQ(client->Read().Json()["count"], 2) << (client == &large ? "large" : "second");
  }
  HttpClient alone = test.ConnectHttp();  // more than half of the budget
  alone.Send(kTokenize + "Content-Length: 100000\r\n\r\n" + std::string(95000, ' '));
  EXPECT_EQ(alone.Read().status, 429);
  EXPECT_EQ(test.ConnectHttp().Get("/health").status, 200);
}

// A client's bodies on several connections count together: with more than half, the oldest ends.
TEST(HttpConnectionsTest, BodiesOnTheirWayCountByToken) {
  const std::string file = ::testing::TempDir() + "http_body_tokens";
  std::ofstream(file) << "token-of-alice\ntoken-of-bob\n";
  TestCoreOptions options;
  options.limits.access = *Access::Load(file, "");
  HttpServerOptions port;
  port.port.receive_memory_bytes = 180000;
  TestServer test(options, port);
  const auto send = [](HttpClient& client, const std::string& user) {
    client.Send(absl::StrCat(kTokenize, "Authorization: Bearer token-of-", user,
                             "\r\nContent-Length: 50000\r\n\r\n", std::string(49986, ' ')));
  };
  HttpClient first = test.ConnectHttp(), second = test.ConnectHttp(), bob = test.ConnectHttp();
  send(first, "alice");
  send(bob, "bob");
  // When these are answered, the server has read the bodies.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(test.ConnectHttp().Get("/health").status, 200);
  send(second, "alice");
  EXPECT_EQ(first.Read().status, 429);
  for (HttpClient* client : {&second, &bob}) {
    client->Send("{\"prompt\":\"a\"}");
    EXPECT_EQ(client->Read().status, 200) << (client == &bob ? "bob" : "alice");
  }
}

TEST(HttpConnectionsTest, ABodyThatStopsIsCutOffHoweverMuchHasCome) {
  HttpServerOptions options = Impatient();
  options.port.max_body_bytes = 1 << 20;
  TestServer test({}, options);
  HttpClient client = test.ConnectHttp();
  const auto start = Clock::now();
  client.Send(kTokenize + "Content-Length: 1000000\r\n\r\n" + std::string(900000, ' '));
  EXPECT_EQ(client.Read().status, 408);  // the limit by size, at 16 KiB/s, would be a minute
  const std::chrono::duration<double> taken = Clock::now() - start;
  EXPECT_LT(taken.count(), 5);
}

TEST(HttpConnectionsTest, AThousandOpenStreamsNeedNoThreads) {
  constexpr int kStreams = 1000;
  TestCoreOptions options;
  options.max_num_seqs = 64;
  options.max_num_queued_reqs = 2 * kStreams;
  TestServer test(options);
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  const auto before = threads();
  std::vector<HttpClient> clients;
  test.script->step_delay_us = 1000;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(test.ConnectHttp());
    clients.back().SendRequest("POST", kPath, Body("many", 24, true));
  }
  EXPECT_LT(threads(), before + 10);  // gRPC starts and ends some threads
  for (HttpClient& client : clients) {
    SCOPED_TRACE(&client - clients.data());
    const HttpReply reply = client.Read();
    ASSERT_EQ(reply.status, 200) << reply.body;
    std::string text;
    for (const std::string& event : Events(reply.body)) {
      if (event != "[DONE]") text += Json::parse(event)["choices"][0]["text"];
    }
    ASSERT_EQ(text, ExpectedText("many", 24));
  }
  EXPECT_LT(threads(), before + 10);
  EXPECT_TRUE(test.WaitIdle());
}

TEST(HttpConnectionsTest, ADrainRefusesNewWorkAndFinishesWhatRuns) {
  TestServer test;
  test.script->step_delay_us = 2000;
  HttpClient running = test.ConnectHttp(), idle = test.ConnectHttp();
  running.SendRequest("POST", kPath, Body("hello", 100, true));
  ASSERT_TRUE(running.ReadUntil("data: "));
  EXPECT_EQ(idle.Get("/health").status, 200);
  test.core->Drain();
  test.http->Drain();
  const HttpReply refused = idle.Post(kPath, {{"prompt", "x"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_FALSE(test.core->Idle());
  EXPECT_EQ(Events(running.Read().body).back(), "[DONE]");
  EXPECT_TRUE(test.WaitIdle());
  HttpClient late = test.ConnectHttp();
  late.SendRequest("POST", kPath, Body("x", 100, true));
  EXPECT_EQ(late.Read().status, 503);
}

}  // namespace
}  // namespace fox
