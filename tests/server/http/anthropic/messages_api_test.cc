// Anthropic's Messages: bodies become prompts, or are refused by name; events become the blocks and
// the stream of https://platform.claude.com/docs/en/build-with-claude/streaming.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/http/openai/chat_messages.h"
#include "tests/fixtures/http_api_test.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr char kUser[] = R"({"role": "user", "content": "u"})";

class MessagesApiTest : public HttpApiTest {
 protected:
  MessagesApiTest() : HttpApiTest(kMessagesApi) {}
  absl::StatusOr<CompletionRequest> Parse(const std::string& fields) override {
    const char* most = absl::StrContains(fields, "max_tokens") ? "" : "\"max_tokens\": 9, ";
    return HttpApiTest::Parse(absl::StrCat(most, fields));
  }
  std::string ToldOf(const std::string& messages) {
    return Told(absl::StrCat("\"messages\": [", messages, "]"));
  }
};

TEST_F(MessagesApiTest, BlocksBecomeTurns) {
  const std::string call = R"({"type": "tool_use", "id": "c", "name": "f", "input": {"a":1}})";
  const std::string result = R"({"type": "tool_result", "tool_use_id": "c", "content": )";
  const std::string skip = "A:<t></t>";
  const std::pair<std::string, std::string> cases[] = {
      {kUser, "U:u\n" + skip},
      {R"({"role": "user", "content": [{"type": "text", "text": "a", "cache_control":
          {"type": "ephemeral"}}, {"type": "text", "text": "b"}]})",
       "U:a\nb\n" + skip},
      // Turns of one side are combined.
      {absl::StrCat(kUser, ",", kUser), "U:u\nu\n" + skip},
      // The API continues an answer that comes last.
      {absl::StrCat(kUser, R"(, {"role": "assistant", "content": "x"})"),
       "U:u\nA:<t>\n\n</t>\n\nx"},
      {absl::StrCat(kUser, R"(, {"role": "assistant", "content": [{"type": "text", "text": "x"}, )",
                    call, R"(]}, {"role": "user", "content": [)", result, R"("r"}, )", result,
                    R"([{"type": "text", "text": "s"}], "is_error": true},
                        {"type": "text", "text": "t"}]})"),
       "U:u\nA:x\n<c>{\"f\": {\"a\": 1}}</c>\nT:r|s\nU:t\n" + skip},
      // A tool's answer may hold an image or a document, which the model cannot see: Claude Code
      // sends both after its tool Read has read a picture or a PDF.
      {absl::StrCat(kUser, R"(, {"role": "assistant", "content": [)", call,
                    R"(]}, {"role": "user", "content": [)", result,
                    R"([{"type": "text", "text": "r"}, {"type": "image", "source":
                        {"type": "base64", "media_type": "image/png", "data": "aGk="}}]},
                        {"type": "document", "source": {}}]})"),
       absl::StrCat("U:u\nA:<c>{\"f\": {\"a\": 1}}</c>\nT:r\n", kUnseenPart, "\nU:", kUnseenPart,
                    "\n", skip)},
      // Answers belong to calls by their ids.
      {absl::StrCat(kUser, R"(, {"role": "assistant", "content": [)", call,
                    R"(, {"type": "tool_use", "id": "d", "name": "g", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "d",
                    "content": "s"}, )",
                    result, R"("r"}]})"),
       "U:u\nA:<c>{\"f\": {\"a\": 1}}</c>\n<c>{\"g\": {}}</c>\nT:r|s\n" + skip},
      // A thought stays behind the last question.
      {absl::StrCat(kUser, R"(, {"role": "assistant", "content": [{"type": "thinking",
                    "thinking": "h", "signature": "s"}, {"type": "redacted_thinking", "data": "d"},
                    )",
                    call, R"(]}, {"role": "user", "content": [)", result, "null}]}"),
       "U:u\nA:<t>\nh\n</t>\n\n<c>{\"f\": {\"a\": 1}}</c>\nT:\n" + skip},
      {absl::StrCat(kUser, R"(, {"role": "assistant", "content": [{"type": "thinking",
                    "thinking": "h", "signature": "s"}, {"type": "text", "text": "x"}]}, )",
                    kUser),
       "U:u\nA:x\nU:u\n" + skip},
      {absl::StrCat(kUser, R"(, {"role": "system", "content": "y"}, )", kUser),
       "U:u\nS:y\nU:u\n" + skip},
  };
  for (const auto& [messages, told] : cases) EXPECT_EQ(ToldOf(messages), told) << messages;
}

TEST_F(MessagesApiTest, TheSystemPromptIsATextOrBlocksWithoutTheBillingLine) {
  const std::string billing = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cch=fa690;";
  const std::pair<std::string, std::string> cases[] = {
      {R"("s")", "S:s\n"},
      {R"([{"type": "text", "text": "s"}, {"type": "text", "text": "t"}])", "S:s\nt\n"},
      {absl::StrCat(R"([{"type": "text", "text": ")", billing,
                    R"("}, {"type": "text", "text": "s"}])"),
       "S:s\n"},
      {absl::StrCat("\"", billing, R"(\ns")"), "S:s\n"},
      {absl::StrCat("\"", billing, "\""), ""},
      {R"("")", ""},
  };
  for (const auto& [system, told] : cases) {
    EXPECT_EQ(Told(absl::StrCat("\"system\": ", system, ", \"messages\": [", kUser, "]")),
              told + "U:u\nA:<t></t>")
        << system;
  }
}

TEST_F(MessagesApiTest, ToolsThoughtsAndFormsOfTheAnswer) {
  const std::string tools =
      R"("tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"},
                   "cache_control": {"type": "ephemeral"}, "eager_input_streaming": true}])";
  const std::string shown = R"({"type": "function", "function": {"name": "f", "description": "d", )"
                            R"("parameters": {"type": "object"}}})";
  const std::string messages = absl::StrCat("\"messages\": [", kUser, "]");
  EXPECT_EQ(Told(absl::StrCat(tools, ",", messages)), "S:F: " + shown + "\nU:u\nA:<t></t>");
  EXPECT_EQ(Told(absl::StrCat(tools, R"(, "tool_choice": {"type": "none"}, )", messages)),
            "U:u\nA:<t></t>");
  const auto chat_of = [&](const std::string& fields) {
    const auto request = Parse(absl::StrCat(fields, ",", messages));
    EXPECT_TRUE(request.ok()) << request.status() << " " << fields;
    return request.ok() ? *request : CompletionRequest();
  };
  const auto with = [&](const char* choice) {
    return chat_of(absl::StrCat(tools, ", \"tool_choice\": ", choice)).prompts[0].messages();
  };
  EXPECT_TRUE(with(R"({"type": "any"})").call_required());
  EXPECT_EQ(with(R"({"type": "tool", "name": "f"})").call_name(), "f");
  EXPECT_TRUE(with(R"({"type": "auto", "disable_parallel_tool_use": true})").one_call());
  EXPECT_EQ(Told(absl::StrCat(R"("thinking": {"type": "adaptive"}, )", messages)), "U:u\nA:");
  EXPECT_EQ(
      Told(absl::StrCat(R"("thinking": {"type": "enabled", "budget_tokens": 1024}, )", messages)),
      "U:u\nA:");
  const char* form = R"("output_config": {"effort": "high", "format":
                         {"type": "json_schema", "schema": {"type": "null"}}})";
  EXPECT_EQ(chat_of(form).settings.sampling().json_schema(), R"({"type":"null"})");
  const CompletionRequest full = chat_of(
      R"("stop_sequences": ["x", "y"], "temperature": 0.5, "top_k": 3, "top_p": 0.5, "stream": true,
         "model": "m", "metadata": {"user_id": "u"}, "service_tier": "auto", "seed": 4,
         "context_management": {"edits": []})");
  EXPECT_TRUE(full.stream);
  EXPECT_EQ(full.settings.stopping().stop(1), "y");
  EXPECT_EQ(full.settings.stopping().max_tokens(), 9u);
  EXPECT_EQ(full.settings.sampling().top_k(), 3u);
}

// The context may hold fewer tokens than a client asks for: the answer ends with it.
TEST_F(MessagesApiTest, MoreTokensThanTheContextLeavesAreNotRefused) {
  context_.limits.max_model_len = 20;
  EXPECT_EQ(ToldOf(kUser), "U:u\nA:<t></t>");
  const std::string message = ToldOf(R"({"role": "user", "content": "12345678901234567890"})");
  EXPECT_EQ(message.find("messages: "), 0u) << message;
}

TEST_F(MessagesApiTest, WhatCannotBeDoneIsRefusedByName) {
  const std::string messages = absl::StrCat("\"messages\": [", kUser, "]");
  const auto block = [](const std::string& role, const std::string& text) {
    return absl::StrCat(R"("messages": [{"role": ")", role, R"(", "content": [)", text, "]}]");
  };
  const std::pair<std::string, const char*> cases[] = {
      {"\"messages\": []", "messages: must be a list of {\"role\", \"content\"}"},
      {"\"system\": \"s\"", "messages: must be a list of {\"role\", \"content\"}"},
      {"\"messages\": [1]", "messages[0].role: must be user, assistant or system"},
      {R"("messages": [{"role": "tool", "content": "x"}])",
       "messages[0].role: must be user, assistant or system"},
      {R"("messages": [{"role": "user"}])", "messages[0].content: must be set"},
      {R"("messages": [{"role": "user", "content": 1}])",
       "messages[0].content: must be a text or a list of blocks"},
      {R"("messages": [{"role": "user", "content": "x", "name": "y"}])",
       "messages[0].name: not supported; leave it out"},
      {block("user", R"({"type": "image", "source": {}})"),
       "messages[0].content[0].type: no image; it is text or tool_result"},
      {block("user", "7"), "messages[0].content[0].type: must be text or tool_result"},
      {block("user", R"({"type": "tool_result", "content": [{"type": "video"}]})"),
       "messages[0].content[0].content[0].type: no video; it is text"},
      {block("user", R"({"type": "text", "text": 1})"),
       "messages[0].content[0].text: must be a string"},
      {block("user", R"({"type": "text", "text": "x", "color": "red"})"),
       "messages[0].content[0].color: not supported; leave it out"},
      {block("assistant", R"({"type": "server_tool_use"})"),
       "messages[0].content[0].type: no server_tool_use; it is text, thinking or tool_use"},
      {block("assistant", R"({"type": "tool_use", "name": "f", "input": "x"})"),
       "messages[0].content[0]: a tool_use must have a name, and an object as input"},
      {R"("system": [{"type": "image"}], )" + messages, "system[0].type: no image; it is text"},
      {R"("system": 1, )" + messages, "system: must be a text or a list of blocks"},
      {R"("tools": {}, )" + messages, "tools: must be a list of tools"},
      {R"("tools": [{"type": "web_search_20250305", "name": "w"}], )" + messages,
       "tools[0].type: web_search_20250305 is a tool of Anthropic's; send tools with an "
       "input_schema"},
      {R"("tools": [{"name": "f", "x": 1}], )" + messages,
       "tools[0].x: not supported; leave it out"},
      {R"("tools": [{"name": "a b"}], )" + messages,
       "tools[0].function.name: must be 1 to 128 letters, digits, _ and -"},
      {R"("tool_choice": "auto", )" + messages, "tool_choice: must be an object"},
      {R"("tool_choice": {"type": "tool"}, )" + messages,
       R"(tool_choice: must be {"type": "auto", "any", "none", or "tool" with a "name"})"},
      {R"("tool_choice": {"type": "any"}, )" + messages,
       "tools: there is none to call, or none of that name"},
      {R"("thinking": {"type": "deep"}, )" + messages,
       R"(thinking: must be {"type": "enabled", "adaptive" or "disabled"})"},
      {R"("thinking": true, )" + messages, "thinking: must be an object"},
      {R"("output_config": {"format": {"type": "json_object"}}, )" + messages,
       R"(output_config.format: must be {"type": "json_schema", "schema": {..}})"},
      {R"("stop_sequences": [1], )" + messages,
       "stop_sequences: must be a string or a list of strings"},
      {R"("mcp_servers": [{"url": "x"}], )" + messages, "mcp_servers: not supported; leave it out"},
      {R"("container": "c", )" + messages, "container: not supported; leave it out"},
      {R"("model": "other", )" + messages, "model: not served here; the model is m"},
  };
  for (const auto& [fields, message] : cases) EXPECT_EQ(Told(fields), message) << fields;
  EXPECT_EQ(kMessagesApi.parse("{" + messages + "}", context_).status().message(),
            "max_tokens: must be set");
  context_.chat = nullptr;
  EXPECT_EQ(Told(messages), "this model has no chat format; use /v1/completions");
}

TEST_F(MessagesApiTest, ToolsNeedAModelThatHasThem) {
  const ChatFormat plain = tokenizer_.Chat();
  context_.chat = &plain;
  const CompletionRequest request =
      *Parse(R"("tools": [{"name": "f"}], "messages": [{"role": "user", "content": "u"}])");
  EXPECT_NE(kMessagesApi.make_writer(request, context_, "print", "id_1", 7), nullptr);
  EXPECT_EQ(Convert(request, 0, context_).status().message(),
            "tools: the model's chat format does not say how they are called");
}

struct Answered {
  std::vector<Json> blocks;
  std::string stop;
  int thought_tokens = 0;
  std::vector<std::string> types;  // of the events, equal neighbours as one
};

class MessagesWriterTest : public MessagesApiTest {
 protected:
  // The answer of `text` in pieces of `piece` bytes, and of its end.
  Answered Answer(const std::string& fields, const std::string& text, size_t piece,
                  const v1::Finish& finish) {
    const CompletionRequest request = *Parse(absl::StrCat(fields, ", \"messages\": [", kUser, "]"));
    const auto writer = kMessagesApi.make_writer(request, context_, "print", "msg_1", 7);
    Answered told;
    const std::string sent = Write(request, text, piece, finish, writer.get());
    if (request.stream) {
      ReadStream(sent + writer->LastChunks(), &told);
    } else {
      const Json body = Json::parse(writer->TakeBody());
      CheckMessage(body);
      CheckUsage(body["usage"], &told);
      told.blocks = body["content"].get<std::vector<Json>>();
      told.stop =
          absl::StrCat(body["stop_reason"].get<std::string>(), " ", body["stop_sequence"].dump());
    }
    for (Json& block : told.blocks) block.erase("id");
    return told;
  }

  static void CheckMessage(const Json& message) {
    EXPECT_EQ(message["id"], "msg_1") << message;
    EXPECT_EQ(message["type"], "message") << message;
    EXPECT_EQ(message["role"], "assistant") << message;
    EXPECT_EQ(message["model"], "m") << message;
  }
  static void CheckUsage(const Json& usage, Answered* told) {
    told->thought_tokens = usage["output_tokens_details"]["thinking_tokens"];
    EXPECT_EQ(usage, Json({{"input_tokens", 10},
                           {"cache_creation_input_tokens", 0},
                           {"cache_read_input_tokens", 20},
                           {"output_tokens", 5},
                           {"output_tokens_details", usage["output_tokens_details"]}}));
  }

  // Puts a stream together as its reference says.
  static void ReadStream(const std::string& sent, Answered* told) {
    for (size_t at = 0; at < sent.size();) {
      const size_t end = sent.find("\n\n", at), data = sent.find("\ndata: ", at);
      ASSERT_LT(data, end) << sent.substr(at);
      const std::string name = sent.substr(at + 7, data - at - 7);
      SCOPED_TRACE(name);
      const Json event = Json::parse(sent.substr(data + 7, end - data - 7));
      ASSERT_EQ(sent.substr(at, 7), "event: ");
      ASSERT_EQ(event["type"], name);
      if (told->types.empty() || told->types.back() != name) told->types.push_back(name);
      at = end + 2;
      if (name == "message_start") {
        CheckMessage(event["message"]);
        const Json& usage = event["message"]["usage"];
        EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>(),
                  30);
      } else if (name == "content_block_start") {
        EXPECT_EQ(event["index"], told->blocks.size());
        told->blocks.push_back(event["content_block"]);
        if (event["content_block"]["type"] == "tool_use") told->blocks.back()["input"] = "";
      } else if (name == "content_block_delta") {
        EXPECT_EQ(event["index"], told->blocks.size() - 1);
        Json& block = told->blocks.back();
        for (const auto& [type, from, to] :
             {std::array<const char*, 3>{"text_delta", "text", "text"},
              {"thinking_delta", "thinking", "thinking"},
              {"signature_delta", "signature", "signature"},
              {"input_json_delta", "partial_json", "input"}}) {
          if (event["delta"]["type"] != type) continue;
          block[to] = block[to].get<std::string>() + event["delta"][from].get<std::string>();
        }
      } else if (name == "content_block_stop") {
        EXPECT_EQ(event["index"], told->blocks.size() - 1);
        Json& block = told->blocks.back();
        if (block["type"] != "tool_use") continue;
        const std::string input = block["input"];
        block["input"] = Json::accept(input) ? Json::parse(input) : Json::object();
      } else if (name == "message_delta") {
        CheckUsage(event["usage"], told);
        EXPECT_TRUE(event.contains("fox"));
        told->stop = absl::StrCat(event["delta"]["stop_reason"].get<std::string>(), " ",
                                  event["delta"]["stop_sequence"].dump());
      }
    }
  }
};

TEST_F(MessagesWriterTest, AStreamAndOneBodyHoldTheSameBlocks) {
  const std::string tools = R"("tools": [{"name": "f"}], "thinking": {"type": "adaptive"})";
  const Json thought = {{"type", "thinking"}, {"thinking", "h\ni"}, {"signature", "unsigned"}};
  const auto text = [](const char* said) { return Json({{"type", "text"}, {"text", said}}); };
  const auto call = [](const Json& input) {
    return Json({{"type", "tool_use"}, {"name", "f"}, {"input", input}});
  };
  struct Case {
    std::string answer;
    std::vector<Json> blocks;
    v1::FinishReason reason = v1::STOP;
    const char* stop = "end_turn null";
  };
  const Case cases[] = {
      {"", {}},
      {"a\n", {text("a\n")}},
      {" <t>\nh\ni\n</t>\n\na", {thought, text("a")}},
      {"<t>\nh\ni", {thought}, v1::LENGTH, "model_context_window_exceeded null"},
      {"<t>\n\n</t>\n\na", {text("a")}},
      {"<tx", {text("<tx")}},
      {"a<t>b</t>", {text("a<t>b</t>")}},
      {"<t>\nh\ni\n</t>\n\n<c>{\"f\": {\"a\": \"}\"}}</c>\n<c>{\"f\": {}}</c>",
       {thought, call({{"a", "}"}}), call(Json::object())},
       v1::STOP,
       "tool_use null"},
      {"a\n<c>{\"f\": {}}</c>b",
       {text("a"), call(Json::object()), text("b")},
       v1::STOP,
       "tool_use null"},
      {"<c>{\"f\": {\"a", {call(Json::object())}, v1::LENGTH, "model_context_window_exceeded null"},
      {"a", {text("a")}, v1::ABORT, "pause_turn null"},
  };
  for (const Case& c : cases) {
    v1::Finish finish;
    finish.set_reason(c.reason);
    for (size_t piece = 1; piece < 60; piece += piece < 4 ? 1 : 27) {
      SCOPED_TRACE(absl::StrCat(c.answer, " in pieces of ", piece));
      const Answered whole = Answer(tools, c.answer, piece, finish);
      EXPECT_EQ(whole.blocks, c.blocks);
      EXPECT_EQ(whole.stop, c.stop);
      const Answered streamed = Answer(tools + ", \"stream\": true", c.answer, piece, finish);
      EXPECT_EQ(streamed.blocks, c.blocks);
      EXPECT_EQ(streamed.stop, c.stop);
      EXPECT_EQ(streamed.thought_tokens, whole.thought_tokens);
      EXPECT_TRUE(piece > 1 || (whole.thought_tokens > 0) == (c.answer.find("<t>\n") < 2));
      std::vector<std::string> types = {"message_start"};
      for (size_t i = 0; i < c.blocks.size(); ++i) {
        types.emplace_back("content_block_start");
        types.emplace_back("content_block_delta");
        types.emplace_back("content_block_stop");
      }
      types.emplace_back("message_delta");
      types.emplace_back("message_stop");
      EXPECT_EQ(streamed.types, types);
    }
  }
}

TEST_F(MessagesWriterTest, TheReasonOfTheEnd) {
  v1::Finish finish;
  finish.set_stop_str("x");
  for (const char* stream : {"", ", \"stream\": true"}) {
    SCOPED_TRACE(stream);
    finish.set_reason(v1::STOP);
    EXPECT_EQ(Answer(absl::StrCat(R"("stop_sequences": ["x"])", stream), "a", 1, finish).stop,
              "stop_sequence \"x\"");
    // The format's own end.
    EXPECT_EQ(Answer(absl::StrCat(R"("stop_sequences": ["y"])", stream), "a", 1, finish).stop,
              "end_turn null");
    finish.set_reason(v1::LENGTH);
    EXPECT_EQ(Answer(absl::StrCat(R"("max_tokens": 5)", stream), "a", 1, finish).stop,
              "max_tokens null");
  }
}

TEST_F(MessagesApiTest, ErrorsHaveTheFormOfTheApi) {
  const std::pair<absl::Status, Json> cases[] = {
      {absl::InvalidArgumentError("sampling.top_p: must be in (0, 1]"),
       {{"type", "invalid_request_error"}, {"message", "top_p: must be in (0, 1]"}}},
      // Anthropic's own clients know this one: they send all messages again, without a thread.
      {absl::InvalidArgumentError("thread: nothing is stored"),
       {{"type", "invalid_request_error"},
        {"message", "thread: nothing is stored"},
        {"details", {{"error_code", "thread_unsupported_request"}}}}},
      {absl::OutOfRangeError("messages: 9"),
       {{"type", "invalid_request_error"}, {"message", "prompt is too long: messages: 9"}}},
      {absl::UnauthenticatedError("x"), {{"type", "authentication_error"}, {"message", "x"}}},
      {absl::PermissionDeniedError("x"), {{"type", "permission_error"}, {"message", "x"}}},
      {absl::NotFoundError("x"), {{"type", "not_found_error"}, {"message", "x"}}},
      {absl::ResourceExhaustedError("x"), {{"type", "rate_limit_error"}, {"message", "x"}}},
      {absl::UnavailableError("x"), {{"type", "overloaded_error"}, {"message", "x"}}},
      {absl::DeadlineExceededError("x"), {{"type", "timeout_error"}, {"message", "x"}}},
      {absl::InternalError("x"), {{"type", "api_error"}, {"message", "x"}}},
  };
  for (const auto& [status, error] : cases) {
    const Json body = {{"type", "error"}, {"error", error}};
    EXPECT_EQ(Json::parse(kMessagesApi.error_body(status)), body) << status;
    const CompletionRequest request = *Parse(absl::StrCat("\"messages\": [", kUser, "]"));
    const auto writer = kMessagesApi.make_writer(request, context_, "print", "msg_1", 7);
    writer->DropContents();
    const std::string event = writer->EncodeFailure(status);
    EXPECT_EQ(event.find("event: error\ndata: "), 0u) << event;
    EXPECT_EQ(Json::parse(event.substr(19)), body) << status;
  }
}

}  // namespace
}  // namespace fox
