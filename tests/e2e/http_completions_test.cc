// OpenAI's completions over HTTP, as one answer and streamed: the same results as in fox.v1.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <future>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/calls/call.h"
#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr char kPath[] = "/v1/completions", kChat[] = "/v1/chat/completions";

Json Greedy(const Json& prompt, int max_tokens) {
  return {{"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}};
}

// A greedy chat request with these turns (role, content).
Json Said(const std::vector<std::pair<const char*, std::string>>& turns, int max_tokens) {
  Json messages = Json::array();
  for (const auto& [role, content] : turns) {
    messages.push_back({{"role", role}, {"content", content}});
  }
  return {{"messages", messages}, {"max_tokens", max_tokens}, {"temperature", 0}};
}

Json With(Json request, const char* field, const Json& value) {
  request[field] = value;
  return request;
}

// The joined chunks of one choice.
struct Streamed {
  std::string text;
  Json finish;
  Json usage;
  Json fox;  // from the last event before [DONE], the only event with `fox`
};
// Joins the events of a reply that has `choices` choices.
std::vector<Streamed> Join(const HttpReply& reply, size_t choices) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  std::vector<Streamed> out(choices);
  std::vector<std::string> events = Events(reply.body);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  for (const std::string& event : events) {
    SCOPED_TRACE(event);
    const Json chunk = Json::parse(event);
    EXPECT_EQ(chunk["object"], "text_completion");
    EXPECT_TRUE(out[0].fox.is_null());
    if (chunk.contains("fox")) out[0].fox = chunk["fox"];
    if (chunk["choices"].empty()) out[0].usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) {
      Streamed& joined = out.at(choice["index"]);
      EXPECT_TRUE(joined.finish.is_null()) << choice;
      joined.text += choice["text"];
      joined.finish = choice["finish_reason"];
    }
  }
  return out;
}

class HttpCompletionsTest : public ::testing::Test {
 protected:
  TestServer test_;
  HttpClient client_ = test_.ConnectHttp();
};

TEST_F(HttpCompletionsTest, OneAnswerAndAStreamHoldTheSameText) {
  const Json request = Greedy("hello", 30);
  const HttpReply whole = client_.Post(kPath, request);
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json answer = whole.Json();
  EXPECT_EQ(answer["model"], "scripted");
  ServerDescription other = test_.core->description;
  EXPECT_EQ(answer["system_fingerprint"], other.Fingerprint());
  other.dtype = "bf16";
  EXPECT_NE(answer["system_fingerprint"], other.Fingerprint());
  EXPECT_EQ(answer["choices"][0]["text"], ExpectedText("hello", 30));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"],
            Json({{"prompt_tokens", 6}, {"completion_tokens", 30}, {"total_tokens", 36}}));
  EXPECT_EQ(answer["fox"]["log_tolerance"], -10);
  EXPECT_TRUE(answer["fox"]["max_log_evicted_mass"].is_null());  // the executor evicts nothing
  EXPECT_NEAR(answer["fox"]["bound_log_prob"].get<double>(), 1000 * std::exp(-10),
              0x1p-28);  // a float32
  const Json off = client_.Post(kPath, With(request, "acp", "off")).Json()["fox"];
  EXPECT_EQ(off["bound_log_prob"], 0);
  EXPECT_TRUE(off["log_tolerance"].is_null());
  Json streamed = With(request, "stream", true);
  EXPECT_EQ(Join(client_.Post(kPath, streamed), 1)[0].fox, answer["fox"]);
  streamed["stream_options"] = {{"include_usage", true}};
  const Streamed joined = Join(client_.Post(kPath, streamed), 1)[0];  // on the same connection
  EXPECT_EQ(joined.text, answer["choices"][0]["text"]);
  EXPECT_EQ(joined.finish, "length");
  EXPECT_EQ(joined.usage, answer["usage"]);
  EXPECT_EQ(joined.fox, answer["fox"]);
  EXPECT_TRUE(test_.WaitIdle());
}

// Work of another client that is queued behind the request delays none of its prompts.
TEST_F(HttpCompletionsTest, AListOfPromptsPassesAdmissionOnce) {
  AdmissionPool& pool = test_.core->admission();
  std::promise<void> before, behind;
  const auto hold = [&](int64_t bytes, std::promise<void>* gate) {
    pool.Post(/*client=*/1, bytes, [gate] { gate->get_future().wait(); });
  };
  hold(0, &before);  // the thread for small messages
  ASSERT_TRUE(Eventually([&] { return pool.queued() == 0; }));
  const std::string body = Greedy({"hello", "you", "there"}, 5).dump();
  client_.SendRequest("POST", kPath, body);
  ASSERT_TRUE(Eventually([&] { return pool.queued() == 1; }));
  hold(4 * static_cast<int64_t>(body.size()) + 1, &behind);  // a byte more than the request is held
  before.set_value();
  const HttpReply reply = client_.Read();
  behind.set_value();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Json()["choices"][2]["text"], ExpectedText("there", 5));
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(HttpCompletionsTest, ManyPromptsOfEveryKindWithManyChoices) {
  const Json ids = {CharacterTokenizer::kBos, 'h', 'e', 'y'};
  for (bool stream : {false, true}) {
    Json request = With(Greedy({"hello", ids}, 12), "n", 2);
    request["stream"] = stream;
    const HttpReply reply = client_.Post(kPath, request);
    ASSERT_EQ(reply.status, 200) << reply.body;
    for (size_t i = 0; i < 4; ++i) {
      SCOPED_TRACE(absl::StrCat("stream ", stream, ", choice ", i));
      const std::string expected = ExpectedText(i < 2 ? "hello" : "hey", 12);
      if (stream) {
        EXPECT_EQ(Join(reply, 4)[i].text, expected);
      } else {
        EXPECT_EQ(reply.Json()["choices"][i]["index"], i);
        EXPECT_EQ(reply.Json()["choices"][i]["text"], expected);
      }
    }
  }
  EXPECT_EQ(client_.Post(kPath, Greedy(ids, 5)).Json()["choices"][0]["text"],
            ExpectedText("hey", 5));
  EXPECT_TRUE(test_.WaitIdle());
}

TEST_F(HttpCompletionsTest, EchoWithLogProbabilitiesAndScoringAlone) {
  const Json request = With(With(Greedy("hey", 2), "echo", true), "logprobs", 1);
  const Json echoed = client_.Post(kPath, request).Json()["choices"][0];
  EXPECT_EQ(echoed["text"], "hey" + ExpectedText("hey", 2));
  const Json& lists = echoed["logprobs"];
  EXPECT_EQ(lists["tokens"].size(), 6u);
  EXPECT_EQ(lists["tokens"][0], "<s>");
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  EXPECT_EQ(lists["text_offset"], Json({0, 0, 1, 2, 3, 4}));
  // Scoring alone and a stream give the same numbers.
  const Json scored = client_.Post(kPath, With(request, "max_tokens", 0)).Json();
  EXPECT_EQ(scored["choices"][0]["text"], "hey");
  EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
  const Json& logprobs = lists["token_logprobs"];
  EXPECT_EQ(scored["choices"][0]["logprobs"]["token_logprobs"],
            Json(std::vector<Json>(logprobs.begin(), logprobs.begin() + 4)));
  const HttpReply streamed = client_.Post(kPath, With(request, "stream", true));
  EXPECT_EQ(Join(streamed, 1)[0].text, echoed["text"]);
  const Json first = Json::parse(Events(streamed.body)[0])["choices"][0];
  EXPECT_EQ(first["logprobs"]["tokens"][0], "<s>");
  EXPECT_TRUE(test_.WaitIdle());
}

// As many clients and prompts as lm-eval sends at a time, at the server's own limits.
TEST(HttpCompletionCallTest, BatchesOfAnEvaluationAreNotRefused) {
  constexpr int kClients = 16;
  constexpr size_t kPrompts = 32;
  TestCoreOptions options;
  options.max_num_queued_reqs = EngineOptions().max_num_queued_reqs;
  TestServer server(options);
  std::vector<std::future<HttpReply>> replies;
  for (int number = 0; number < kClients; ++number) {
    replies.push_back(std::async(std::launch::async, [&server, number] {
      Json request = Greedy(std::vector<std::string>(kPrompts, absl::StrCat("client ", number)), 0);
      request["echo"] = true;
      request["logprobs"] = 1;
      return server.ConnectHttp().Post(kPath, request);
    }));
  }
  for (std::future<HttpReply>& next : replies) {
    const HttpReply reply = next.get();
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json choices = reply.Json()["choices"];
    ASSERT_EQ(choices.size(), kPrompts) << reply.body;
    for (const Json& choice : choices) {
      EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), choice["logprobs"]["tokens"].size())
          << choice;
    }
  }
}

TEST(HttpCompletionCallTest, AListOfPromptsIsAdmittedAsAWhole) {
  TestCoreOptions options;
  options.limits.max_calls = 4;
  TestServer test(options);
  test.script->step_delay_us = 2000;
  HttpClient client = test.ConnectHttp(), other = test.ConnectHttp();
  other.SendRequest("POST", kPath, With(Greedy({"a", "b"}, 3000), "stream", true).dump());
  ASSERT_TRUE(Eventually([&] { return test.engine->stats().running == 2; }));
  const int64_t read = test.engine->stats().prompt_tokens;
  const HttpReply refused = client.Post(kPath, Greedy({"a", "b", "c"}, 3));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.Json()["error"]["type"], "rate_limit_error");
  EXPECT_GT(std::stoi(refused.headers.at("retry-after")), 0);
  other.Close();
  EXPECT_TRUE(test.WaitIdle());
  EXPECT_EQ(test.engine->stats().prompt_tokens, read);
  EXPECT_EQ(client.Post(kPath, Greedy({"a", "b", "c"}, 3)).status, 200);
}

// Clients send a request again that is refused with 429.
TEST(HttpCompletionCallTest, AMessageThatCanNeverBeHeldIsNotToBeSentAgain) {
  TestCoreOptions options;
  options.limits.max_calls = 4;
  options.limits.max_call_bytes = 20'000;
  TestServer test(options);
  HttpClient client = test.ConnectHttp();
  const std::string long_one(1200, 'a');
  for (const Json& prompt :
       {Json{"a", "b", "c", "d"}, Json(std::string(2600, 'a')), Json{long_one, long_one}}) {
    SCOPED_TRACE(prompt.dump().substr(0, 80));
    const HttpReply refused = client.Post(kPath, With(Greedy("", 3), "prompt", prompt));
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.headers.count("retry-after"), 0U);
    EXPECT_TRUE(absl::StrContains(refused.body, "--max-calls")) << refused.body;
  }
  EXPECT_TRUE(test.WaitIdle());
  EXPECT_EQ(client.Post(kPath, Greedy(long_one, 3)).status, 200);
}

TEST(HttpCompletionCallTest, AnAnswerThatCanNeverBeHeldIsNotToBeAskedForAgain) {
  TestCoreOptions options;
  options.limits.max_call_bytes = 64 << 10;
  TestServer test(options);
  HttpClient client = test.ConnectHttp();
  Json request = With(Greedy(std::string(600, 'a'), 2), "echo", true);
  EXPECT_EQ(client.Post(kPath, request).status, 200);
  request["logprobs"] = 5;
  const std::vector<std::string> some(8, std::string(100, 'a'));
  for (const Json& body : {request, With(request, "stream", true), With(request, "prompt", some)}) {
    SCOPED_TRACE(body.dump().substr(0, 80));
    const HttpReply refused = client.Post(kPath, body);
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.headers.count("retry-after"), 0U);
    EXPECT_TRUE(absl::StrContains(refused.body, "half of --call-memory-mb")) << refused.body;
  }
  EXPECT_TRUE(test.WaitIdle());
}

TEST(HttpCompletionCallTest, ARequestHasItsId) {
  TestServer test;
  test.script->step_delay_us = 2000;
  HttpClient client = test.ConnectHttp(), other = test.ConnectHttp();
  const std::string body = With(Greedy("hello", 3000), "stream", true).dump();
  client.SendRequest("POST", kPath, body, "X-Request-Id: mine\r\n");
  ASSERT_TRUE(client.ReadUntil("\"object\""));
  const std::string begun = client.received().substr(client.received().find("cmpl-") + 5);
  const std::string id = begun.substr(0, begun.find('"'));
  // A service mesh has the header passed on with all calls for one request of a user's.
  other.SendRequest("POST", kPath, Greedy("hello", 2).dump(), "X-Request-Id: mine\r\n");
  const HttpReply beside = other.Read();
  EXPECT_EQ(beside.status, 200);
  EXPECT_EQ(beside.headers.at("x-request-id"), "mine");
  EXPECT_TRUE(absl::StartsWith(beside.Json()["id"].get<std::string>(), "cmpl-mine-"));
  EXPECT_NE(beside.Json()["id"], "cmpl-" + id);
  other.SendRequest("POST", kPath, body, "X-Request-Id: not mine\r\n");
  EXPECT_EQ(other.Read().ErrorField(), "x-request-id");
  CallInfo administrator;
  administrator.administrator = true;
  EXPECT_TRUE(AbortCalls(*test.core, administrator, id));
  ASSERT_TRUE(client.ReadUntil("[DONE]"));
  EXPECT_TRUE(absl::StrContains(client.received(), "\"finish_reason\":\"abort\""));
}

TEST(HttpCompletionCallTest, AFailureInAStreamIsAnEventAndElseAStatus) {
  TestServer test;
  test.script->step_delay_us = 2000;
  HttpClient stream = test.ConnectHttp(), whole = test.ConnectHttp();
  stream.SendRequest("POST", kPath, With(Greedy("hello", 3000), "stream", true).dump());
  ASSERT_TRUE(stream.ReadUntil("data: "));
  whole.SendRequest("POST", kPath, Greedy("hello", 3000).dump());
  ASSERT_TRUE(Eventually([&] { return test.engine->stats().running == 2; }));
  test.script->fail = true;
  const HttpReply streamed = stream.Read(), answered = whole.Read();
  const std::vector<std::string> events = Events(streamed.body);
  ASSERT_GT(events.size(), 2u);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["type"], "server_error");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_GE(answered.status, 500);
  EXPECT_EQ(answered.Json()["error"]["type"], "server_error");
}

TEST(HttpCompletionCallTest, AMissingTokenIsRefusedBeforeTheBody) {
  const std::string file = ::testing::TempDir() + "http_tokens";
  std::ofstream(file) << "a-secret-token\n";
  TestCoreOptions options;
  options.limits.access = *Access::Load(file, "");
  TestServer test(options);
  HttpClient client = test.ConnectHttp();
  for (const char* path : {"/health", "/version"}) EXPECT_EQ(client.Get(path).status, 200) << path;
  EXPECT_EQ(client.Get("/v1/models").status, 401);
  const std::string body = Greedy("hello", 3).dump();
  const std::string right = "Authorization: Bearer a-secret-token\r\n";
  client.SendRequest("POST", kPath, body, right);
  EXPECT_EQ(client.Read().status, 200);
  // As Anthropic's clients send it; beside Authorization it is another server's.
  const std::pair<std::string, int> keys[] = {
      {"X-Api-Key: a-secret-token\r\n", 200},
      {"X-Api-Key: another-token\r\n", 401},
      {"X-Api-Key: another-token\r\n" + right, 200},
      {"X-Api-Key: a-secret-token\r\nAuthorization: Bearer another-token\r\n", 401},
      {"X-Api-Key: a-secret-token\r\nX-Api-Key: a-secret-token\r\n", 401}};
  for (const auto& [headers, status] : keys) {
    HttpClient one = test.ConnectHttp();
    one.SendRequest("POST", kPath, body, headers);
    EXPECT_EQ(one.Read().status, status) << headers;
  }
  HttpClient twice = test.ConnectHttp();  // a proxy may have checked only one of them
  twice.SendRequest("POST", kPath, body, right + right);
  EXPECT_EQ(twice.Read().status, 401);
  client.Send(absl::StrCat("POST ", kPath,
                           " HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 9\r\n"
                           "Authorization: Bearer another-token\r\n\r\n"));
  const HttpReply refused = client.Read();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(refused.Json()["error"]["type"], "authentication_error");
  EXPECT_TRUE(client.AtEnd());
}

// A proxy would close a silent connection.
// https://html.spec.whatwg.org/multipage/server-sent-events.html
TEST(HttpCompletionsSilenceTest, AStreamWithoutTokensSendsComments) {
  HttpServerOptions options;
  options.port.silence = 0.05;
  TestServer test({}, options);
  HttpClient client = test.ConnectHttp();
  const Json request = Greedy("hello", 3);
  test.script->step_delay_us = 400000;
  client.SendRequest("POST", kPath, With(request, "stream", true).dump());
  ASSERT_TRUE(client.ReadUntil(": waiting\n\n"));
  EXPECT_EQ(client.received().find("data: "), std::string::npos);
  HttpReply streamed = client.Read();
  EXPECT_TRUE(absl::StartsWith(streamed.body, ": waiting\n\n"));
  streamed.body = absl::StrReplaceAll(streamed.body, {{": waiting\n\n", ""}});
  const HttpReply whole = client.Post(kPath, request);  // not streamed: without comments
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(Join(streamed, 1)[0].text, whole.Json()["choices"][0]["text"]);
}

// https://platform.claude.com/docs/en/build-with-claude/streaming: any number of pings.
TEST(HttpCompletionsSilenceTest, AStreamOfMessagesSendsPings) {
  HttpServerOptions options;
  options.port.silence = 0.05;
  TestCoreOptions with_chat;
  with_chat.with_chat = true;
  TestServer test(with_chat, options);
  HttpClient client = test.ConnectHttp();
  test.script->step_delay_us = 400000;
  const Json request = With(Said({{"user", "hello"}}, 3), "stream", true);
  client.SendRequest("POST", "/v1/messages", request.dump());
  ASSERT_TRUE(client.ReadUntil("event: ping\ndata: {\"type\":\"ping\"}\n\n"));
  const std::string body = client.Read().body;
  EXPECT_EQ(body.find("event: ping"), 0u) << body;
  EXPECT_TRUE(absl::EndsWith(body, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"))
      << body;
}

TEST_F(HttpCompletionsTest, OtherPathsAreServed) {
  EXPECT_EQ(client_.Get("/v1/models").Json()["data"][0]["id"], "scripted");
  EXPECT_EQ(client_.Get("/v1/models/scripted").Json()["id"], "scripted");
  EXPECT_EQ(client_.Get("/v1/models/%73cripted").Json()["id"], "scripted");
  EXPECT_EQ(client_.Get("/v1/models/").status, 200);
  EXPECT_EQ(client_.Get("/version").Json()["version"], "0.0");
  EXPECT_EQ(client_.Get("/health").status, 200);
  const Json tokens = client_.Post("/tokenize", {{"prompt", "hi"}}).Json();
  EXPECT_EQ(tokens["tokens"], Json({CharacterTokenizer::kBos, 'h', 'i'}));
  EXPECT_EQ(tokens["count"], 3);
  const Json ids = {{"tokens", tokens["tokens"]}};
  EXPECT_EQ(client_.Post("/detokenize", ids).Json()["prompt"], "<s>hi");  // as in vLLM
  EXPECT_EQ(client_.Post("/detokenize", With(ids, "skip_special_tokens", true)).Json()["prompt"],
            "hi");
  for (const Json& wrong :
       {Json({{"tokens", {-1}}}), Json({{"tokens", nullptr}}), Json::object()}) {
    EXPECT_EQ(client_.Post("/detokenize", wrong).ErrorField(), "tokens") << wrong;
  }
  EXPECT_EQ(client_.Post("/detokenize", {{"prompt", {1}}}).ErrorField(), "tokens");
  EXPECT_EQ(client_.Post("/detokenize", With(ids, "other", 1)).ErrorField(), "other");
  EXPECT_EQ(client_.Post("/tokenize", {{"content", "hi"}}).ErrorMessage(),
            "content: did you mean prompt?");
  // A text that is the name of a special token becomes that token, so that clients learn its id.
  const Json eos = {{"prompt", "</s>"}, {"add_special_tokens", false}};
  EXPECT_EQ(client_.Get("/tokenizer_info").Json()["eos_token"], "</s>");
  EXPECT_EQ(client_.Post("/tokenize", eos).Json()["tokens"], Json({CharacterTokenizer::kEos}));
  test_.server->Drain();
  EXPECT_EQ(client_.Get("/health").status, 503);
}

TEST_F(HttpCompletionsTest, AModelWithoutAChatFormatNamesTheOtherPath) {
  EXPECT_EQ(client_.Get("/v1/models").Json()["data"][0]["chat"], false);
  const HttpReply reply = client_.Post(kChat, Said({{"user", "hi"}}, 3));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.ErrorMessage(), "this model has no chat format; use /v1/completions");
}

TEST_F(HttpCompletionsTest, AConversation) {
  TestCoreOptions options;
  options.with_chat = true;
  TestServer test(options);
  HttpClient client = test.ConnectHttp();
  EXPECT_EQ(client.Get("/v1/models").Json()["data"][0]["chat"], true);
  const std::string question(200, 'q');
  const Json first = Said({{"user", question}}, 100);
  const Json answer = client.Post(kChat, first).Json();
  const std::string text = answer["choices"][0]["message"]["content"];
  EXPECT_EQ(text, ExpectedText("U:" + question + "\nA:", 100));
  const Json tokens = client.Post("/tokenize", {{"messages", first["messages"]}}).Json();
  EXPECT_EQ(tokens["count"], answer["usage"]["prompt_tokens"]);
  EXPECT_TRUE(absl::StartsWith(answer["id"].get<std::string>(), "chatcmpl-"));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 206);
  EXPECT_EQ(answer["fox"]["log_tolerance"], -10);
  std::string joined;
  std::vector<std::string> events = Events(client.Post(kChat, With(first, "stream", true)).body);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  for (const std::string& event : events) {
    const Json choice = Json::parse(event)["choices"][0];
    EXPECT_EQ(choice["delta"].contains("role"), joined.empty()) << event;
    joined += choice["delta"]["content"];
  }
  EXPECT_EQ(joined, text);
  // fox.v1 answers the same.
  v1::GenerateRequest request = GreedyRequest("", 100);
  v1::ChatMessage* turn = request.mutable_messages()->add_turns();
  turn->set_role("user");
  turn->set_content(question);
  v1::GenerateResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(test.inference->Generate(&context, request, &response).ok());
  EXPECT_EQ(response.completions(0).text(), text);
  // The next turn.
  const Json next = Said({{"user", question}, {"assistant", text}, {"user", "and"}}, 5);
  EXPECT_EQ(client.Post(kChat, next).Json()["usage"]["prompt_tokens"], 206 + 100 + 10);
  const Json open =
      With(Said({{"user", question}, {"assistant", text}}, 5), "continue_final_message", true);
  EXPECT_EQ(client.Post(kChat, open).Json()["choices"][0]["message"]["content"],
            ExpectedText("U:" + question + "\nA:<t></t>" + text, 5));
  EXPECT_EQ(client.Post(kChat, Said({{"tool", "x"}}, 1)).ErrorField(), "messages[0].role");
  EXPECT_TRUE(test.WaitIdle());
}

TEST_F(HttpCompletionsTest, RefusalsOfOtherPathsNameTheRightOne) {
  struct Case {
    const char *path, *message, *code;
  };
  const Case cases[] = {
      {"/v1/embeddings", "no embeddings here", "unknown_url"},
      {"/v1/responses/resp_1", "no response is stored", "unknown_url"},
      {"/v1/messages/batches", "no batches here; use /v1/messages", "unknown_url"},
      {"/completions", "paths begin with /v1", "unknown_url"},
      {"/chat/completions", "paths begin with /v1", "unknown_url"},
      {"/models", "paths begin with /v1", "unknown_url"},
      {"/metrics", "--metrics-port", "unknown_url"},
      {"/nothing", "no such path", "unknown_url"},
  };
  for (const Case& c : cases) {
    HttpClient refused = test_.ConnectHttp();  // the server closes it without reading the body
    const HttpReply reply = refused.Post(c.path, Greedy("hello", 3));
    ASSERT_EQ(reply.status, 404) << c.path;
    EXPECT_TRUE(absl::StrContains(reply.ErrorMessage(), c.message)) << reply.body;
    EXPECT_EQ(reply.Json()["error"]["code"], c.code) << c.path;
  }
  const HttpReply other = client_.Get("/v1/models/other");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.Json()["error"]["code"], "model_not_found");
  const HttpReply get = client_.Get(kPath);
  EXPECT_EQ(get.status, 405);
  EXPECT_TRUE(absl::StrContains(get.ErrorMessage(), "use POST"));
  EXPECT_EQ(get.headers.at("allow"), "POST");
  EXPECT_EQ(client_.Post("/v1/completions/", Greedy("hello", 3)).status, 200);
  client_.Send(absl::StrCat("POST ", kPath,
                            " HTTP/1.1\r\nHost: [::1]\r\nContent-Type: "
                            "application/x-www-form-urlencoded\r\nContent-Length: 2\r\n\r\n{}"));
  EXPECT_TRUE(absl::StrContains(client_.Read().ErrorMessage(), "(curl --json)"));
}

}  // namespace
}  // namespace fox
