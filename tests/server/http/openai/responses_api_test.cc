// OpenAI's Responses: bodies become prompts, or are refused by name; events become the items and
// the stream of https://platform.openai.com/docs/api-reference/responses-streaming.
#include <gtest/gtest.h>

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

class ResponsesApiTest : public HttpApiTest {
 protected:
  ResponsesApiTest() : HttpApiTest(kResponsesApi) {}
};

TEST_F(ResponsesApiTest, ItemsBecomeTurns) {
  const std::string call =
      R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\":1}"})";
  const std::string result = R"({"type": "function_call_output", "call_id": "c", "output": )";
  const std::string user = R"({"role": "user", "content": "u"})";
  const std::pair<std::string, std::string> cases[] = {
      {R"("u")", "U:u\nA:"},
      {"[" + user + "]", "U:u\nA:"},
      {R"([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
          {"type": "input_text", "text": "b"}]}])",
       "U:a\nb\nA:"},
      {absl::StrCat(R"([{"type": "message", "role": "developer", "content": "d"}, )", user, "]"),
       "S:d\nU:u\nA:"},
      // An assistant's items are one turn.
      {absl::StrCat("[", user, R"(, {"type": "message", "id": "msg_1", "role": "assistant",
                    "status": "completed", "content": [{"type": "output_text", "text": "x",
                    "annotations": [], "logprobs": []}]}, )",
                    call, ", ", call, ", ", result, R"("r"}, )", result,
                    R"([{"type": "input_text", "text": "s"}]}])"),
       "U:u\nA:x\n<c>{\"f\": {\"a\": 1}}</c>\n<c>{\"f\": {\"a\": 1}}</c>\nT:r|s\nA:"},
      {absl::StrCat("[", user, ",", call,
                    R"(, {"type": "function_call", "call_id": "d", "name": "g",
                    "arguments": ""}, {"type": "function_call_output", "call_id": "d",
                    "output": "s"}, )",
                    result, R"("r"}])"),
       "U:u\nA:<c>{\"f\": {\"a\": 1}}</c>\n<c>{\"g\": {}}</c>\nT:r|s\nA:"},
      {absl::StrCat("[", user, R"(, {"type": "reasoning", "id": "rs_1", "summary": [], "content":
                    [{"type": "reasoning_text", "text": "h"}], "encrypted_content": null}, )",
                    call, ",", result, R"("r"}])"),
       "U:u\nA:<t>\nh\n</t>\n\n<c>{\"f\": {\"a\": 1}}</c>\nT:r\nA:"},
      // A function's output may hold an image, which the model cannot see: Codex sends one after
      // its function view_image.
      {absl::StrCat("[", user, ",", call, ",", result,
                    R"([{"type": "input_text", "text": "r"},
                        {"type": "input_image", "image_url": "data:image/png;base64,aGk="}]}])"),
       absl::StrCat("U:u\nA:<c>{\"f\": {\"a\": 1}}</c>\nT:r\n", kUnseenPart, "\nA:")},
      // "h" in base64, and a thought of another server.
      {absl::StrCat("[", user, R"(, {"type": "reasoning", "summary": [],
                    "encrypted_content": "fox1:aA=="}, )",
                    call, ",", result, R"("r"}])"),
       "U:u\nA:<t>\nh\n</t>\n\n<c>{\"f\": {\"a\": 1}}</c>\nT:r\nA:"},
      {absl::StrCat("[", user, R"(, {"type": "reasoning", "summary": [{"type": "summary_text",
                    "text": "s"}], "encrypted_content": "gAAAAA"}, )",
                    call, ",", result, R"("r"}])"),
       "U:u\nA:<c>{\"f\": {\"a\": 1}}</c>\nT:r\nA:"},
  };
  for (const auto& [input, told] : cases) EXPECT_EQ(Told("\"input\": " + input), told) << input;
  EXPECT_EQ(Told(R"("instructions": "i", "input": [{"role": "developer", "content": "d"}, )" +
                 user + "]"),
            "S:i\nd\nU:u\nA:");
}

// Codex writes as the developer in the middle of a conversation, Claude Code as the system.
TEST_F(ResponsesApiTest, ALaterSystemMessageIsTheUsersWhereTheTemplateHasNoPlaceForIt) {
  const ChatFormat strict = *ChatFormat::Parse(R"({"later_system": false, "alternate": true,
      "roles": {"system": {"prefix": "S:", "suffix": "\n"}, "user": {"prefix": "U:",
      "suffix": "\n"}, "assistant": {"prefix": "A:", "suffix": "\n"}}, "generation_prompt": "A:"})",
                                               tokenizer_);
  const std::string input = R"("instructions": "i", "input": [
      {"role": "developer", "content": "d"}, {"role": "user", "content": "u"},
      {"role": "developer", "content": "e"}, {"role": "assistant", "content": "a"},
      {"role": "developer", "content": "f"}, {"role": "user", "content": "v"}])";
  EXPECT_EQ(Told(input), "S:i\nd\nU:u\nS:e\nA:a\nS:f\nU:v\nA:");
  context_.chat = &strict;
  EXPECT_EQ(Told(input), "S:i\nd\nU:u\ne\nA:a\nU:f\nv\nA:");
}

TEST_F(ResponsesApiTest, ToolsThoughtsAndFormsOfTheAnswer) {
  const std::string tools = R"("tools": [{"type": "web_search"}, {"type": "function", "name": "f",
      "description": "d", "strict": false, "parameters": {"type": "object"}},
      {"type": "namespace", "name": "n", "tools": []}, {"type": "custom", "name": "c"}])";
  const std::string shown = R"({"type": "function", "function": {"name": "f", "description": "d", )"
                            R"("parameters": {"type": "object"}, "strict": false}})";
  EXPECT_EQ(Told(tools + R"(, "input": "u")"), "S:F: " + shown + "\nU:u\nA:");
  EXPECT_EQ(Told(tools + R"(, "tool_choice": "none", "input": "u")"), "U:u\nA:");
  EXPECT_EQ(Told(R"("reasoning": {"effort": "none"}, "input": "u")"), "U:u\nA:<t></t>");
  EXPECT_EQ(Told(R"("reasoning": {"effort": "high", "summary": "auto"}, "input": "u")"), "U:u\nA:");
  const auto request_of = [&](const std::string& fields) {
    const auto request = Parse(fields + R"(, "input": "u")");
    EXPECT_TRUE(request.ok()) << request.status() << " " << fields;
    return request.ok() ? *request : CompletionRequest();
  };
  const auto chat_of = [&](const std::string& fields) {
    return request_of(tools + ", " + fields).prompts[0].messages();
  };
  EXPECT_TRUE(chat_of(R"("tool_choice": "required")").call_required());
  EXPECT_EQ(chat_of(R"("tool_choice": {"type": "function", "name": "f"})").call_name(), "f");
  // https://platform.openai.com/docs/guides/function-calling#allowed-tools
  const auto allowed = [&](const char* mode, const char* listed) {
    return absl::StrCat(R"("tool_choice": {"type": "allowed_tools", "mode": ")", mode,
                        R"(", "tools": [{"type": "mcp", "server_label": "f"})", listed, "]}");
  };
  const char* f = R"(, {"type": "function", "name": "f"})";
  EXPECT_TRUE(chat_of(allowed("required", f)).call_required());
  EXPECT_FALSE(chat_of(allowed("auto", f)).call_required());
  EXPECT_EQ(Told(tools + ", " + allowed("auto", f) + R"(, "input": "u")"),
            "S:F: " + shown + "\nU:u\nA:");
  EXPECT_EQ(Told(tools + ", " + allowed("auto", "") + R"(, "input": "u")"), "U:u\nA:");
  EXPECT_EQ(Told(tools + ", " + allowed("auto", R"(, {"type": "function", "name": "g"})") +
                 R"(, "input": "u")"),
            "tool_choice: must be a choice of functions in tools");
  EXPECT_TRUE(chat_of(R"("parallel_tool_calls": false)").one_call());
  const v1::Sampling schema = request_of(R"("text": {"verbosity": "medium", "format": {
      "type": "json_schema", "name": "n", "strict": true, "schema": {"type": "null"}}})")
                                  .settings.sampling();
  EXPECT_EQ(schema.json_schema(), R"({"type":"null"})");
  EXPECT_TRUE(request_of(R"("text": {"format": {"type": "json_object"}})")
                  .settings.sampling()
                  .json_object());
  const CompletionRequest full = request_of(R"("model": "m", "temperature": 0.5, "top_p": 0.5,
      "stream": true, "store": true, "max_output_tokens": 7, "include":
      ["reasoning.encrypted_content"], "metadata": {"a": "b"}, "truncation": "disabled",
      "client_metadata": {"x": "y"}, "prompt_cache_key": "k", "seed": 4)");
  EXPECT_TRUE(full.stream && full.seals_thoughts && full.max_tokens_sent);
  EXPECT_EQ(full.settings.stopping().max_tokens(), 7u);
  const Json echoed = Json::parse("{" + full.echoed + "}");
  EXPECT_EQ(echoed["temperature"], 0.5);
  EXPECT_EQ(echoed["metadata"], Json({{"a", "b"}}));
  EXPECT_EQ(echoed["store"], false);
  EXPECT_EQ(echoed["tool_choice"], "auto");
  // The reference requires these fields of a function.
  const std::string function = R"("tools": [{"type": "function", "name": "f"}])";
  const Json tool = Json::parse("{" + request_of(function).echoed + "}")["tools"][0];
  EXPECT_TRUE(tool.at("strict").is_null() && tool.at("parameters").is_null());
  const std::string spaces = R"("tools": [{"type": "namespace", "name": "n", "tools": [)" +
                             std::string(R"({"type": "function", "name": "g"}]}])");
  EXPECT_TRUE(Json::parse("{" + request_of(spaces).echoed + "}")["tools"][0]["tools"][0]
                  .at("strict")
                  .is_null());
  // An answer repeats metadata, which the server does not read, as it was sent.
  for (const char* metadata : {R"([{"type": 1}])", R"([{"type": "function"}])", "[1]", "7"}) {
    const std::string sent = absl::StrCat(R"("metadata": )", metadata);
    EXPECT_EQ(Json::parse("{" + request_of(sent).echoed + "}")["metadata"], Json::parse(metadata))
        << sent;
  }
}

TEST_F(ResponsesApiTest, WhatCannotBeDoneIsRefusedByName) {
  const std::string input = R"("input": "u")";
  const auto item = [](const std::string& text) { return "\"input\": [" + text + "]"; };
  const std::pair<std::string, const char*> cases[] = {
      {R"("instructions": "i")", "input: must be a text or a list of items"},
      {"\"input\": []", "messages: there is none"},
      {item("1"),
       "input[0].type: must be message, reasoning, function_call or "
       "function_call_output"},
      {item(R"({"type": "item_reference", "id": "x"})"),
       "input[0].type: nothing is stored; send the item itself"},
      {item(R"({"role": "robot", "content": "x"})"),
       "input[0].role: must be user, assistant, system or developer"},
      {item(R"({"role": "user"})"), "input[0].content: must be set"},
      {item(R"({"role": "user", "content": 1})"),
       "input[0].content: must be a text or a list of parts"},
      {item(R"({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]})"),
       "input[0].content[0].type: no input_image; it is input_text or output_text"},
      {item(R"({"role": "user", "content": "x", "color": 1})"),
       "input[0].color: not supported; leave it out"},
      {item(R"({"type": "function_call", "arguments": "{}"})"), "input[0].name: must be set"},
      {item(R"({"type": "function_call_output"})"), "input[0].output: must be set"},
      {item(R"({"type": "reasoning", "encrypted_content": "fox1:*"})"),
       "input[0].encrypted_content: must be as this server gave it"},
      {R"("previous_response_id": "resp_1", )" + input,
       "previous_response_id: nothing is stored; send all messages"},
      {R"("conversation": "c", )" + input, "conversation: nothing is stored; send all messages"},
      {R"("background": true, )" + input, "background: not supported; leave it out"},
      {R"("prompt": {"id": "p"}, )" + input, "prompt: did you mean input?"},
      {R"("messages": [{"role": "user"}], )" + input, "messages: did you mean input?"},
      {R"("max_completion_tokens": 9, )" + input,
       "max_completion_tokens: did you mean max_output_tokens?"},
      {R"("stop_sequences": ["a"], )" + input, "stop_sequences: not supported; leave it out"},
      {R"("truncation": "auto", )" + input,
       "truncation: must be disabled, or absent; a client drops items itself"},
      {R"("max_output_tokens": 0, )" + input,
       "max_output_tokens: must be an integer in [1, 2147483647]"},
      {R"("max_output_tokens": 99999, )" + input,
       "max_output_tokens: 99999 are more than the 9994 that a prompt of 6 tokens leaves. This "
       "model's maximum context length is 10000 tokens"},
      {R"("max_tokens": 9, )" + input, "max_tokens: not supported; leave it out"},
      {R"("include": ["message.output_text.logprobs"], )" + input,
       "include: must be without logprobs; /v1/chat/completions has them"},
      {R"("tools": {}, )" + input, "tools: must be a list of tools"},
      {R"("tools": [1], )" + input, "tools[0].type: must be set"},
      {R"("tools": [{"type": "function", "name": "f", "x": 1}], )" + input,
       "tools[0].x: not supported; leave it out"},
      {R"("tools": [{"type": "web_search"}], "tool_choice": "required", )" + input,
       "tools: there is none to call, or none of that name"},
      {R"("tool_choice": {"type": "web_search"}, )" + input,
       R"(tool_choice: must be "none", "auto", "required", {"type": "function", "name": ..} or )"
       R"({"type": "allowed_tools", "mode": .., "tools": [..]})"},
      {R"("text": {"format": {"type": "xml"}}, )" + input,
       "text.format.type: must be text, json_object or json_schema"},
      {R"("text": {"format": {"type": "json_schema"}}, )" + input,
       "text.format.schema: must be an object"},
      {R"("text": {"verbosity": "low"}, )" + input,
       "text.verbosity: must be medium, or absent: the model has no such switch"},
      {R"("reasoning": {"effort": "much"}, )" + input,
       "reasoning.effort: must be none, minimal, low, medium, high, xhigh or max"},
      {R"("model": "other", )" + input, "model: not served here; the model is m"},
  };
  for (const auto& [fields, message] : cases) EXPECT_EQ(Told(fields), message) << fields;
  context_.chat = nullptr;
  EXPECT_EQ(Told(input), "this model has no chat format; use /v1/completions");
}

TEST_F(ResponsesApiTest, ToolsNeedAModelThatHasThem) {
  const ChatFormat plain = tokenizer_.Chat();
  context_.chat = &plain;
  const CompletionRequest request =
      *Parse(R"("tools": [{"type": "function", "name": "f"}], "input": "u")");
  EXPECT_NE(kResponsesApi.make_writer(request, context_, "print", "id_1", 7), nullptr);
  EXPECT_EQ(Convert(request, 0, context_).status().message(),
            "tools: the model's chat format does not say how they are called");
}

class ResponsesWriterTest : public ResponsesApiTest {
 protected:
  // The answer of `text` in pieces of `piece` bytes: the last Response, and its stream's events.
  Json Answer(const std::string& fields, const std::string& text, size_t piece,
              v1::FinishReason reason, std::vector<Json>* events) {
    const CompletionRequest request = *Parse(fields + R"(, "input": "u")");
    const auto writer = kResponsesApi.make_writer(request, context_, "print", "resp_1", 7);
    v1::Finish finish;
    finish.set_reason(reason);
    const std::string sent = Write(request, text, piece, finish, writer.get());
    if (!request.stream) return Json::parse(writer->TakeBody());
    EXPECT_EQ(writer->LastChunks(), "");
    for (size_t at = 0; at < sent.size();) {
      const size_t stop = sent.find("\n\n", at), data = sent.find("\ndata: ", at);
      const std::string name = sent.substr(at + 7, data - at - 7);
      SCOPED_TRACE(name);
      events->push_back(Json::parse(sent.substr(data + 7, stop - data - 7)));
      EXPECT_EQ(events->back()["type"], name);
      EXPECT_EQ(events->back()["sequence_number"], events->size() - 1);
      at = stop + 2;
    }
    return events->back()["response"];
  }

  // Puts the items of a stream together, and checks that each ends as it was told.
  static std::vector<Json> ItemsOf(const std::vector<Json>& events) {
    std::vector<Json> items;
    std::string text;
    for (const Json& event : events) {
      const std::string type = event["type"];
      SCOPED_TRACE(event);
      if (event.contains("output_index")) {
        EXPECT_EQ(event["output_index"], items.size() - (type.ends_with("item.added") ? 0 : 1));
      }
      if (event.contains("item_id")) {
        EXPECT_EQ(event["item_id"], items.back()["id"]);
      }
      if (type == "response.output_item.added") {
        EXPECT_EQ(event["item"]["status"], "in_progress");
        items.push_back(event["item"]);
        text.clear();
      } else if (type.ends_with(".delta")) {
        text += event["delta"];
      } else if (type.ends_with("text.done")) {
        EXPECT_EQ(event["text"], text);
      } else if (type.ends_with("arguments.done")) {
        EXPECT_EQ(event["arguments"], text);
        EXPECT_EQ(event["name"], items.back()["name"]);
      } else if (type == "response.content_part.done") {
        EXPECT_EQ(event["part"]["text"], text);
      } else if (type == "response.output_item.done") {
        EXPECT_EQ(event["item"]["id"], items.back()["id"]);
        items.back() = event["item"];
      }
    }
    return items;
  }
  static std::vector<std::string> TypesOf(const std::vector<Json>& events) {
    std::vector<std::string> types;
    for (const Json& event : events) {
      const std::string type = event["type"].get<std::string>().substr(9);  // "response."
      if (types.empty() || types.back() != type) types.push_back(type);
    }
    return types;
  }
};

TEST_F(ResponsesWriterTest, AStreamAndOneBodyHoldTheSameItems) {
  const std::string fields = R"("include": ["reasoning.encrypted_content"],
      "tools": [{"type": "function", "name": "f"}])";
  struct Item {
    const char *type, *text;
    const char* status = "completed";
  };
  struct Case {
    std::string answer;
    std::vector<Item> items;
    v1::FinishReason reason = v1::STOP;
    const char* status = "completed";
  };
  const Case cases[] = {
      {"", {}},
      {"a\n", {{"message", "a\n"}}},
      {"<t>\nh\n</t>\n\na", {{"reasoning", "h"}, {"message", "a"}}},
      {"<t>\nh", {{"reasoning", "h", "incomplete"}}, v1::LENGTH, "incomplete"},
      {"<t>\nh\n</t>\n\na\n<c>{\"f\": {\"a\": \"}\"}}</c>\n<c>{\"f\": {}}</c>",
       {{"reasoning", "h"},
        {"message", "a"},
        {"function_call", "{\"a\": \"}\"}"},
        {"function_call", "{}"}}},
      {"<c>{\"f\": {\"a", {{"function_call", "{\"a", "incomplete"}}, v1::LENGTH, "incomplete"},
      {"a", {{"message", "a", "incomplete"}}, v1::ABORT, "failed"},
  };
  for (const Case& c : cases) {
    for (size_t piece = 1; piece < 60; piece += piece < 4 ? 1 : 27) {
      SCOPED_TRACE(absl::StrCat(c.answer, " in pieces of ", piece));
      std::vector<Json> events;
      Json whole = Answer(fields, c.answer, piece, c.reason, &events);
      Json streamed = Answer(fields + ", \"stream\": true", c.answer, piece, c.reason, &events);
      EXPECT_EQ(Json(ItemsOf(events)), streamed["output"]);
      for (Json* response : {&whole, &streamed}) {
        SCOPED_TRACE(*response);
        EXPECT_EQ((*response)["status"], c.status);
        ASSERT_EQ((*response)["output"].size(), c.items.size());
        for (size_t i = 0; i < c.items.size(); ++i) {
          Json& item = (*response)["output"][i];
          SCOPED_TRACE(item);
          EXPECT_EQ(item["type"], c.items[i].type);
          EXPECT_EQ(item["status"], c.items[i].status);
          const bool call = item["type"] == "function_call";
          EXPECT_EQ(call ? item["arguments"] : item["content"][0]["text"], c.items[i].text);
          if (item["type"] == "reasoning") {
            EXPECT_EQ(item["encrypted_content"], "fox1:aA==");
          }
          item.erase("call_id");
        }
      }
      EXPECT_EQ(streamed, whole);
      EXPECT_EQ(whole["usage"]["input_tokens_details"]["cached_tokens"], 20);
      EXPECT_EQ(whole["usage"]["total_tokens"], 35);
    }
  }
}

// In the order of the reference.
TEST_F(ResponsesWriterTest, EventsComeInOrder) {
  const std::vector<std::string> text = {"output_item.added", "content_part.added",
                                         "output_text.delta", "output_text.done",
                                         "content_part.done", "output_item.done"};
  const std::vector<std::string> thought = {"output_item.added",    "content_part.added",
                                            "reasoning_text.delta", "reasoning_text.done",
                                            "content_part.done",    "output_item.done"};
  const std::vector<std::string> call = {"output_item.added", "function_call_arguments.delta",
                                         "function_call_arguments.done", "output_item.done"};
  std::vector<std::string> wanted = {"created", "in_progress"};
  for (const auto* part : {&thought, &text, &call}) {
    wanted.insert(wanted.end(), part->begin(), part->end());
  }
  wanted.emplace_back("completed");
  std::vector<Json> events;
  const std::string fields = R"("stream": true, "tools": [{"type": "function", "name": "f"}])";
  const Json last = Answer(fields, "<t>hh</t>a\n<c>{\"f\": {}}</c>", 1, v1::STOP, &events);
  EXPECT_EQ(TypesOf(events), wanted);
  for (const size_t first : {0U, 1U}) {
    const Json& response = events[first]["response"];
    SCOPED_TRACE(response);
    EXPECT_EQ(response["status"], "in_progress");
    EXPECT_TRUE(response["usage"].is_null() && response["output"].empty());
  }
  // A token for each of hh</t>.
  EXPECT_EQ(last["usage"]["output_tokens_details"]["reasoning_tokens"], 6);
  EXPECT_EQ(last["output"][0]["encrypted_content"], nullptr);
  EXPECT_EQ(last["fox"]["cached_tokens"], 20);
}

// Codex sends the tools of each MCP server as a namespace, and knows a call by both of its names
// (https://github.com/openai/codex/issues/33263, https://github.com/BerriAI/litellm/pull/32536).
TEST_F(ResponsesWriterTest, FunctionsOfANamespaceAreSeenAndCalledWithBothNames) {
  const auto space = [](const char* name) {
    return absl::StrCat(R"({"type": "namespace", "name": ")", name, R"(", "description": "d",
        "tools": [{"type": "function", "name": "g", "strict": false, "defer_loading": false,
                   "parameters": {"type": "object"}}, {"type": "custom", "name": "c"}]})");
  };
  const std::string tools = absl::StrCat(R"("tools": [{"type": "function", "name": "g"}, )",
                                         space("mcp__fs__"), ", ", space("n"), "]");
  const auto shown = [](const char* name) {
    return absl::StrCat(R"( {"type": "function", "function": {"name": ")", name,
                        R"(", "parameters": {"type": "object"}, "strict": false}})");
  };
  EXPECT_EQ(
      Told(tools + R"(, "input": [{"role": "user", "content": "u"}, {"type": "function_call",
                "call_id": "c", "name": "g", "namespace": "mcp__fs__", "arguments": ""},
                {"type": "function_call_output", "call_id": "c", "namespace": "mcp__fs__",
                 "output": "r"}])"),
      absl::StrCat(R"(S:F: {"type": "function", "function": {"name": "g"}})", shown("mcp__fs__g"),
                   shown("n__g"), "\nU:u\nA:<c>{\"mcp__fs__g\": {}}</c>\nT:r\nA:"));
  for (const char* stream : {"", R"(, "stream": true)"}) {
    SCOPED_TRACE(stream);
    std::vector<Json> events;
    const Json last = Answer(tools + stream, "<c>{\"mcp__fs__g\": {}}</c>\n<c>{\"g\": {}}</c>", 1,
                             v1::STOP, &events);
    EXPECT_EQ(last["output"][0]["name"], "g");
    EXPECT_EQ(last["output"][0]["namespace"], "mcp__fs__");
    EXPECT_FALSE(last["output"][1].contains("namespace"));
    if (*stream == 0) continue;
    EXPECT_EQ(ItemsOf(events), last["output"].get<std::vector<Json>>());
  }
  EXPECT_EQ(Told(R"("input": "u", "tools": [{"type": "namespace", "name": "n", "tools": [{}]}])"),
            "tools[0].tools[0].type: must be set");
}

TEST_F(ResponsesWriterTest, AFailureInAStreamIsItsLastEvent) {
  const CompletionRequest request = *Parse(R"("stream": true, "input": "u")");
  const auto writer = kResponsesApi.make_writer(request, context_, "print", "resp_1", 7);
  v1::GenerateDelta delta;
  delta.mutable_delta()->set_text("a");
  writer->AddEvent(0, delta);
  writer->TakeChunk(0, delta);
  writer->DropContents();
  for (const auto& [status, code] : {std::pair<absl::Status, const char*>{
                                         absl::ResourceExhaustedError("x"), "rate_limit_exceeded"},
                                     {absl::InternalError("x"), "server_error"}}) {
    const std::string event = writer->EncodeFailure(status);
    ASSERT_EQ(event.find("event: response.failed\ndata: "), 0u) << event;
    const Json json = Json::parse(event.substr(event.find('{')));
    EXPECT_EQ(json["response"]["status"], "failed") << event;
    EXPECT_EQ(json["response"]["error"], Json({{"code", code}, {"message", "x"}})) << event;
    EXPECT_EQ(json["sequence_number"], 5) << event;
  }
}

}  // namespace
}  // namespace fox
