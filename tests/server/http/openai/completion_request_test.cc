// CompletionRequest: fields of OpenAI's API as fields of fox.v1.
#include "server/http/openai/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "models/grammar/json_schema.h"
#include "nlohmann/json.hpp"
#include "tests/fixtures/character_tokenizer.h"

namespace fox {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CompletionRequestTest : public ::testing::Test {
 protected:
  CompletionRequestTest() {
    context_.tokenizer = &tokenizer_;
    context_.chat = &chat_;
    context_.served_model_name = "served";
    context_.limits.vocab_size = CharacterTokenizer::kVocabSize;
    context_.limits.max_model_len = 50;
  }
  absl::StatusOr<CompletionRequest> Parse(Json fields) {
    if (!fields.contains("prompt")) fields["prompt"] = "hi";
    return ParseCompletion(fields.dump(), context_);
  }
  CompletionRequest Parsed(const Json& fields) {
    absl::StatusOr<CompletionRequest> request = Parse(fields);
    EXPECT_TRUE(request.ok()) << request.status();
    return *std::move(request);
  }
  void ExpectRefused(const Json& fields, const char* message) {
    const absl::Status status = Parse(fields).status();
    EXPECT_FALSE(status.ok()) << fields;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  absl::StatusOr<CompletionRequest> ParseChat(Json fields) {
    if (!fields.contains("messages")) fields["messages"] = {{{"role", "user"}, {"content", "hi"}}};
    return ParseCompletion(fields.dump(), context_, /*chat=*/true);
  }

  CharacterTokenizer tokenizer_;
  const ChatFormat chat_ = tokenizer_.Chat();
  ConversionContext context_;
};

TEST_F(CompletionRequestTest, TheFourFormsOfAPrompt) {
  EXPECT_EQ(Parsed({{"prompt", "x"}}).prompts[0].text(), "x");
  EXPECT_EQ(Parsed({{"prompt", {"x", "y"}}}).prompts[1].text(), "y");
  EXPECT_THAT(Parsed({{"prompt", {1, 2}}}).prompts[0].token_ids().ids(), ElementsAre(1, 2));
  const CompletionRequest lists = Parsed({{"prompt", {{1, 2}, {3}}}});
  ASSERT_EQ(lists.prompts.size(), 2u);
  EXPECT_THAT(lists.prompts[1].token_ids().ids(), ElementsAre(3));
  for (const Json& wrong : {Json(1), Json(true), Json::object(), Json::array(), Json({1, "x"}),
                            Json({1.5}), Json({Json({Json({1})})}), Json({"x", nullptr})}) {
    ExpectRefused({{"prompt", wrong}}, "prompt: ");
  }
  ExpectRefused({{"prompt", std::vector<std::string>(kMaxPrompts + 1, "x")}}, "prompt: at most");
}

TEST_F(CompletionRequestTest, FieldsOfSamplingAndStopping) {
  const CompletionRequest request = Parsed(Json::parse(R"({
      "temperature": 0.5, "top_p": 0.25, "top_k": -1, "min_p": 0.125, "presence_penalty": 1,
      "frequency_penalty": -1, "repetition_penalty": 1.5, "seed": -7, "n": 2, "best_of": 2,
      "logit_bias": {"5": -100}, "max_tokens": 7, "min_tokens": 2, "stop": "s",
      "stop_token_ids": [9], "ignore_eos": true, "user": "ignored", "suffix": ""})"));
  v1::GenerateRequest expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(sampling { temperature: 0.5 top_p: 0.25 top_k: 0 min_p: 0.125 presence_penalty: 1
                    frequency_penalty: -1 repetition_penalty: 1.5 seed: 18446744073709551609 n: 2
                    logit_bias { key: 5 value: -100 } }
         stopping { max_tokens: 7 min_tokens: 2 stop: "s" stop_token_ids: 9 ignore_eos: true })",
      &expected));
  using google::protobuf::util::MessageDifferencer;
  EXPECT_TRUE(MessageDifferencer::Equals(request.settings.sampling(), expected.sampling()))
      << request.settings.DebugString();
  EXPECT_TRUE(MessageDifferencer::Equals(request.settings.stopping(), expected.stopping()))
      << request.settings.DebugString();
}

TEST_F(CompletionRequestTest, WhatTheAnswerHasToBe) {
  std::string deep = "1";
  for (size_t depth = 0; depth < kMaxSchemaDepth; ++depth)
    deep = absl::StrCat(R"({"a":)", deep, "}");
  const std::pair<std::string, std::string> cases[] = {
      {R"("response_format": {"type": "json_object"})", "json_object: true"},
      {absl::StrCat(R"("response_format": {"type": "json_schema", "json_schema": {"schema": )",
                    deep, "}}"),
       absl::StrCat("json_schema: '", deep, "'")},
      // The order of the client's properties stays.
      {R"("response_format": {"type": "json_schema", "json_schema":
          {"name": "x", "strict": true, "schema": {"z": 1, "a": 2}}})",
       R"(json_schema: '{"z":1,"a":2}')"},
      // Where other servers have it; its numbers keep their digits.
      {R"("response_format": {"type": "json_object", "schema": {"const": 18446744073709551616}})",
       R"(json_schema: '{"const":18446744073709551616}')"},
      {R"("response_format": {"type": "json_schema", "schema": {"enum": [1.0, 1e2]}})",
       R"(json_schema: '{"enum":[1.0,1e2]}')"},
      {R"("response_format": {"type": "json_object", "value": {"a": 1}})",
       R"(json_schema: "{\"a\":1}")"},
      {R"("response_format": {"type": "json_object", "schema": {}, "json_schema": null})",
       "json_object: true"},
      {R"("structured_outputs": {"json": {"z": 1, "a": 2}, "regex": null})",
       R"(json_schema: '{"z":1,"a":2}')"},
      {R"("structured_outputs": {"json": "{\"z\": 1}"})", R"(json_schema: '{"z": 1}')"},
      {R"("structured_outputs": {"regex": "a+"})", "regex: 'a+'"},
      {R"("structured_outputs": {"grammar": "root ::= x"})", "grammar: 'root ::= x'"},
      {R"("structured_outputs": {"choice": ["a", "b"]})", "choice: 'a' choice: 'b'"},
      {R"("structured_outputs": {"json_object": true})", "json_object: true"}};
  for (const auto& [fields, message] : cases) {
    const auto request =
        ParseCompletion(absl::StrCat(R"({"prompt": "x", )", fields, "}"), context_);
    ASSERT_TRUE(request.ok()) << fields << request.status();
    v1::Sampling expected;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(message, &expected)) << message;
    expected.set_n(1);
    EXPECT_TRUE(
        google::protobuf::util::MessageDifferencer::Equals(request->settings.sampling(), expected))
        << fields << request->settings.DebugString();
  }
}

TEST_F(CompletionRequestTest, DefaultsAreOpenAis) {
  const CompletionRequest request = Parsed({{"stop", nullptr}, {"logprobs", nullptr}});
  EXPECT_EQ(request.settings.stopping().max_tokens(), 16u);
  EXPECT_FALSE(request.stream || request.echo || request.include_usage || request.score);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.settings.output().has_logprobs());
  EXPECT_FALSE(request.settings.sampling().has_temperature());
}

TEST_F(CompletionRequestTest, WhatCannotBeDoneIsRefused) {
  const std::pair<Json, const char*> cases[] = {
      {{{"suffix", "x"}}, "suffix: not supported"},
      {{{"best_of", 3}}, "best_of: "},
      {{{"response_format", {{"type", "json_schema"}}}}, "response_format: must be"},
      {{{"response_format", {{"type", "grammar"}}}}, "response_format: must be"},
      {{{"response_format", {{"type", "json_object"}, {"schema", 1}}}}, "response_format: must be"},
      {{{"response_format", {{"type", "text"}, {"schema", {{"type", "object"}}}}}},
       "response_format.schema: not of this type"},
      {{{"response_format", {{"type", "json_object"}, {"json_schema", {{"schema", {{"a", 1}}}}}}}},
       "response_format.json_schema: not of this type"},
      {{{"response_format",
         {{"type", "json_schema"}, {"json_schema", {{"schema", {{"a", 1}}}, {"strikt", true}}}}}},
       "response_format.json_schema.strikt: not supported"},
      {{{"stream_options", {{"include_usage", true}, {"continuous_usage_stats", 1}}},
        {"stream", true}},
       "stream_options.continuous_usage_stats: "},
      {{{"reasoning_effort", "low"}}, "reasoning_effort: of /v1/chat/completions"},
      {{{"any_field", 1}}, "any_field: not supported; leave it out"},
      {{{"response_format", 1}}, "response_format: "},
      {{{"structured_outputs", 1}}, "structured_outputs: must be an object with one of"},
      {{{"structured_outputs", {{"whitespace_pattern", " "}}}}, "structured_outputs: must be"},
      {{{"structured_outputs", {{"choice", {1}}}}}, "structured_outputs: must be"},
      {{{"structured_outputs", {{"choice", Json::array()}}}}, "structured_outputs: must be"},
      {{{"structured_outputs", {{"regex", "a"}}}, {"max_tokens", 0}, {"echo", true}},
       "max_tokens: "},
      {{{"n", 17}}, "n: "},
      {{{"n", 16}, {"prompt", std::vector<std::string>(9, "x")}}, "n: at most"},
      {{{"max_tokens", 0}}, "max_tokens: "},
      {{{"max_tokens", 0}, {"echo", true}, {"n", 2}}, "n: "},
      {{{"stream_options", {{"include_usage", 1}}}, {"stream", true}}, "include_usage"},
      {{{"acp", "on"}}, "acp: must be off, paper or certified"},
      {{{"acp", ""}}, "acp: must be off, paper or certified"},
      {{{"acp", "acp_mode_unspecified"}}, "acp: must be off, paper or certified"},
      {{{"acp", true}}, "acp: "},
      {{{"log_tolerance", "-20"}}, "log_tolerance: "},
      {{{"max_new_tokens", 3}}, "max_new_tokens: did you mean max_tokens?"},
      {{{"logprobs", true}}, "logprobs: must be an integer in [0, 20]; true and false"},
      {{{"logprobs", 21}}, "logprobs: must be an integer in [0, 20]"}};
  for (const auto& [fields, message] : cases) ExpectRefused(fields, message);
  EXPECT_TRUE(absl::IsNotFound(Parse({{"model", "other"}}).status()));
  Parsed({{"response_format", {{"type", "text"}}}, {"model", "served"}, {"metadata", {{"a", 1}}}});
  // Before a missing prompt.
  const absl::StatusOr<CompletionRequest> chat =
      ParseCompletion(R"({"messages": [{"role": "user", "content": "hi"}]})", context_);
  EXPECT_THAT(std::string(chat.status().message()), HasSubstr("messages: of /v1/chat/completions"));
}

TEST_F(CompletionRequestTest, PruningIsAskedForByTheNamesOfTheFlags) {
  const std::pair<const char*, v1::AcpMode> modes[] = {
      {"off", v1::OFF}, {"paper", v1::PAPER}, {"certified", v1::CERTIFIED}};
  for (const auto& [name, mode] : modes) {
    EXPECT_EQ(Parsed({{"acp", name}}).settings.acp().mode(), mode);
  }
  EXPECT_EQ(Parsed({{"log_tolerance", -20}}).settings.acp().log_tolerance(), -20);
  EXPECT_FALSE(Parsed({}).settings.acp().has_mode());
}

TEST_F(CompletionRequestTest, MoreTokensThanTheContextLeavesAreRefused) {
  const CompletionRequest fits = Parsed({{"prompt", "abc"}, {"max_tokens", 46}});
  EXPECT_TRUE(Convert(fits, 0, context_).ok());  // bos, 3 and 46 of 50
  const CompletionRequest more = Parsed({{"prompt", "abc"}, {"max_tokens", 47}});
  const absl::Status refused = Convert(more, 0, context_).status();
  EXPECT_TRUE(absl::IsOutOfRange(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_tokens: 47 are more than the 46"));
  // By these words LiteLLM knows it.
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("This model's maximum context length is 50 tokens"));
  const CompletionRequest asked_for_none = Parsed({{"prompt", std::string(45, 'a')}});
  const absl::StatusOr<GenerationSpec> cut = Convert(asked_for_none, 0, context_);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->sequences[0].stop.max_tokens, 4);
}

TEST_F(CompletionRequestTest, NoTokensToGenerateAreAScore) {
  const CompletionRequest request = Parsed({{"prompt", {104, 105}},
                                            {"echo", true},
                                            {"logprobs", 2},
                                            {"max_tokens", 0},
                                            {"acp", "off"},
                                            {"truncate_prompt_tokens", 1}});
  EXPECT_TRUE(request.score);
  const absl::StatusOr<GenerationSpec> spec = Convert(request, 0, context_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->sequences[0].stop.max_tokens, 0);
  EXPECT_THAT(spec->sequences[0].prompt, ElementsAre(105));
  EXPECT_EQ(spec->prompt_text, "i");
  EXPECT_TRUE(spec->acp_stats);
  EXPECT_EQ(spec->sequences[0].log_tolerance, -std::numeric_limits<double>::infinity());
}

TEST_F(CompletionRequestTest, AChatIsMessages) {
  const absl::StatusOr<CompletionRequest> request = ParseChat(Json::parse(R"({
      "messages": [{"role": "developer", "content": "be"},
                   {"role": "user", "content": [{"type": "text", "text": "a"},
                                                {"type": "text", "text": "b"}], "name": "n"},
                   {"role": "assistant", "refusal": null, "tool_calls": [], "audio": null,
                    "annotations": [{"type": "url_citation"}], "reasoning_content": "none here"},
                   {"role": "user", "content": "c"}],
      "max_completion_tokens": 7, "logprobs": true, "top_logprobs": 2, "stop": ["s"],
      "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "user": "ignored",
      "add_special_tokens": false, "best_of": 1, "stream": true,
      "chat_template_kwargs": {"enable_thinking": false}})"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->chat && request->stream && request->max_tokens_sent);
  EXPECT_EQ(request->settings.output().logprobs(), 2);
  EXPECT_FALSE(request->settings.has_add_special_tokens());
  const absl::StatusOr<GenerationSpec> spec = Convert(*request, 0, context_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::vector<int32_t>& ids = spec->sequences[0].prompt;
  EXPECT_EQ(Detokenize(tokenizer_, ids, /*skip_special=*/false),
            "<s>S:be.\nU:a\nb\nA:</s>\nU:c\nA:<t></t>");
  EXPECT_EQ(spec->sequences[0].stop.max_tokens, 7);
  EXPECT_THAT(spec->sequences[0].stop.stop_token_ids, ElementsAre(CharacterTokenizer::kEos));
  // The rest of the context, unless the client says how much.
  const absl::StatusOr<CompletionRequest> plain = ParseChat({});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->logprobs, -1);
  EXPECT_EQ(Convert(*plain, 0, context_)->sequences[0].stop.max_tokens, 42);  // after 8 tokens
}

constexpr char kToolChat[] = R"({"generation_prompt": "A:", "roles": {
    "system": {"prefix": "S:", "suffix": ".\n"}, "user": {"prefix": "U:", "suffix": "\n"},
    "assistant": {"prefix": "A:", "suffix": "\n"}, "tool": {"prefix": "T:", "suffix": "\n"}},
    "tools": {"prefix_alone": "#", "tool": " ", "suffix": "#", "separator": "\n",
    "call": "<c>{\"", "arguments": "\": ", "call_end": "}</c>", "next_response": "|"}})";
constexpr char kTools[] = R"([
    {"type": "function", "function": {"name": "f", "description": "d: \"e\", \\",
     "parameters": {"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}}}},
    {"type": "function", "function": {"name": "g"}}])";

TEST_F(CompletionRequestTest, ToolsReachPromptAndGrammar) {
  const ChatFormat chat = *ChatFormat::Parse(kToolChat, tokenizer_);
  context_.chat = &chat;
  context_.limits.max_model_len = 1000;
  const auto grammars = GrammarCompiler::Create(tokenizer_, CharacterTokenizer::kVocabSize, {});
  context_.grammars = grammars.get();
  const std::string prompt =
      R"(S:# {"type": "function", "function": {"name": "f", "description": "d: \"e\", \\", )"
      R"("parameters": {"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}}}} )"
      R"({"type": "function", "function": {"name": "g"}}#.)"
      "\n"
      R"(U:u)"
      "\n"
      R"(A:<c>{"f": {"z": 1, "a": ":,"}})"
      "</c>\n"
      R"(<c>{"g": {}}</c>)"
      "\n"
      "T:x|y\nA:";
  struct Case {
    const char* choice;
    bool told;
    std::string begins;  // of calls, and of what may be beside them
    const char* says;    // the grammar
  };
  const std::string both = R"(<c>{"f": |<c>{"g": )";
  const Case cases[] = {
      {R"("tool_choice": "none")", false, "", ""},
      {R"("tool_choice": "auto")", true, both, "dispatch=true"},
      {R"("parallel_tool_calls": false)", true, both, "dispatch=false"},
      {R"("response_format": {"type": "json_object"})", true, both + "|", ")* | r"},
      {R"("tool_choice": "required", "response_format": {"type": "json_object"})", true, both,
       ")*\n"},
      {R"("tool_choice": "required")", true, both, ")*\n"},
      {R"("tool_choice": {"type": "function", "function": {"name": "g"}})", true, R"(<c>{"g": )",
       R"("<c>{\"g\": ")"},
      {R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools":
          [{"type": "function", "function": {"name": "f"}},
           {"type": "function", "function": {"name": "g"}}]}})",
       true, both, "dispatch=true"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.choice);
    const auto request = ParseCompletion(
        absl::StrCat(R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant",
            "content": null, "tool_calls": [
              {"id": "1", "type": "function",
               "function": {"name": "f", "arguments": "{\"z\":1,\"a\":\":,\"}"}},
              {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
            {"role": "tool", "tool_call_id": "2", "content": "y"}], "tools": )",
                     kTools, ",", c.choice, "}"),
        context_, /*chat=*/true);
    ASSERT_TRUE(request.ok()) << request.status();
    const absl::StatusOr<GenerationSpec> spec = Convert(*request, 0, context_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(Detokenize(tokenizer_, spec->sequences[0].prompt, false),
              c.told ? prompt : prompt.substr(prompt.find("U:")));
    if (!spec->grammar.has_value()) {
      EXPECT_TRUE(c.begins.empty());
      continue;
    }
    EXPECT_TRUE(grammars->Compile(*spec->grammar).ok());
    EXPECT_EQ(absl::StrJoin(spec->grammar->json_begins, "|"), c.begins);
    EXPECT_THAT(spec->grammar->text, HasSubstr(c.says));
  }
}

// A tool whose schema no grammar can express is called all the same, and the relaxed keywords are
// listed.
TEST_F(CompletionRequestTest, ToolsAreRelaxedUnlessTheyAreStrict) {
  const ChatFormat chat = *ChatFormat::Parse(kToolChat, tokenizer_);
  context_.chat = &chat;
  context_.limits.max_model_len = 1000;
  const auto grammars = GrammarCompiler::Create(tokenizer_, CharacterTokenizer::kVocabSize, {});
  context_.grammars = grammars.get();
  const auto tool = [](const Json& parameters) {
    return Json{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}};
  };
  const Json text = {{"type", "string"}};
  const std::pair<Json, std::vector<std::string>> cases[] = {
      {{{"type", "object"}, {"properties", {{"a/b", {{"type", "array"}, {"uniqueItems", true}}}}}},
       {"f#/properties/a~1b/uniqueItems"}},
      {{{"type", {"object", "null"}}, {"not", {{"required", {"x"}}}}}, {"f#/not"}},
      {{{"$ref", "#/$defs/Node"},
        {"$defs",
         {{"Node",
           {{"type", "object"},
            {"properties", {{"next", {{"$ref", "#/$defs/Node"}}}, {"name", text}}}}}}}},
       {}}};
  for (const auto& [parameters, relaxed] : cases) {
    const auto request = ParseChat({{"tools", {tool(parameters)}}});
    ASSERT_TRUE(request.ok()) << request.status();
    const absl::StatusOr<GenerationSpec> spec = Convert(*request, 0, context_);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->relaxed, relaxed) << parameters;
    EXPECT_TRUE(grammars->Compile(*spec->grammar).ok()) << parameters;
  }
}

TEST_F(CompletionRequestTest, ToolsThatCannotBeCalledAreRefused) {
  const ChatFormat chat = *ChatFormat::Parse(kToolChat, tokenizer_);
  context_.chat = &chat;
  const auto refused = [&](const Json& fields) {
    const auto request = ParseChat(fields);
    const absl::Status status =
        request.ok() ? Convert(*request, 0, context_).status() : request.status();
    EXPECT_FALSE(status.ok()) << fields;
    return std::string(status.message());
  };
  const Json tool = Json::parse(kTools)[1];
  const auto with = [&](const char* pointer, const Json& value) {
    Json changed = tool;
    changed[Json::json_pointer(pointer)] = value;
    return Json({{"tools", {tool, changed}}});
  };
  const Json strict = {
      {"type", "function"},
      {"function",
       {{"name", "f"},
        {"strict", true},
        {"parameters", {{"properties", {{"x", {{"not", {{"type", "null"}}}}}}}}}}}};
  const std::pair<Json, const char*> bad[] = {
      {{{"tools", "x"}}, "tools: must be a list"},
      {{{"tools", {1}}}, "tools[0].function: must be"},
      {with("/type", "retrieval"), "tools[1].function: must be {\"type\": \"function\""},
      {with("/function/name", "a b"), "tools[1].function.name: must be 1 to 128 letters"},
      {with("/function/name", std::string(129, 'a')), "tools[1].function.name: must be"},
      {with("/function/strict", true), "tools[1].function.name: is there twice"},
      {with("/function/parameters", {{"type", "string"}}), "tools[1].function.parameters: must be"},
      {{{"tools", {strict}}}, "tools[0].function.parameters: /properties/x: not is not supported"},
      {with("/function/parameters", {{"title", std::string(kMaxGrammarBytes, 'a')}}),
       "tools[1]: the schemas of the tools up"},
      {{{"tools", Json::array_t(129, tool)}}, "tools: at most 128"},
      {{{"tools", {tool}}, {"tool_choice", "f"}}, "tool_choice: must be \"none\""},
      {{{"tools", {tool}}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}},
       "tools: there is none to call"},
      {{{"tool_choice", "required"}}, "tools: there is none to call"},
      {{{"tools", {tool}}, {"parallel_tool_calls", 1}}, "parallel_tool_calls: must be true"},
      {{{"tools", {tool}}, {"structured_outputs", {{"regex", "a"}}}}, "regex: not beside tools"},
      {{{"tools", {tool}}, {"structured_outputs", {{"json", {{"not", 1}}}}}},
       "json_schema: not is not supported"},
      {{{"messages", {{{"role", "assistant"}, {"tool_calls", 1}}}}},
       "messages[0].tool_calls: must"},
      {{{"messages", {{{"role", "assistant"}, {"tool_calls", {1}}}}}},
       "messages[0].tool_calls: eac"},
      {{{"messages",
         {{{"role", "assistant"},
           {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", 1}}}}}}}}}},
       "messages[0].tool_calls: each must have"}};
  for (const auto& [fields, message] : bad) EXPECT_THAT(refused(fields), HasSubstr(message));
  context_.chat = &chat_;
  EXPECT_EQ(refused({{"tools", {tool}}}),
            "tools: the model's chat format does not say how they are called");
}

TEST_F(CompletionRequestTest, WhatAChatCannotDoIsRefusedByName) {
  const auto turns = [](Json first, const Json& second) {
    return Json({{"messages", {std::move(first), second}}});
  };
  const Json user = {{"role", "user"}, {"content", "hi"}};
  const auto content = [&](const Json& value) {
    return turns(user, {{"role", "user"}, {"content", value}});
  };
  const std::pair<Json, const char*> cases[] = {
      {{{"functions", {1}}}, "functions: send tools"},
      {{{"response_format", {{"type", "json"}}}}, "response_format: "},
      {{{"audio", {{"voice", "x"}}}}, "audio: text alone"},
      {{{"prompt", "x"}}, "prompt: of /v1/completions; send messages"},
      {{{"echo", true}}, "echo: of /v1/completions alone"},
      {{{"chat_template", "x"}}, "chat_template: "},
      {{{"chat_template_kwargs", {{"enable_thinking", 1}}}}, "chat_template_kwargs: must be {"},
      {{{"chat_template_kwargs", {{"enable_thinking", true}, {"x", 1}}}}, "chat_template_kwargs: "},
      {turns(user, {{"role", "user"}, {"content", ""}, {"reasoning_content", "x"}}),
       "messages[1].reasoning_content: of an assistant's"},
      {turns(user, {{"role", "assistant"}, {"reasoning_content", 1}}),
       "messages[1].reasoning_content: must be a string"},
      {turns(user, {{"role", "assistant"}, {"content", "x"}, {"prefix", true}}),
       "messages[1].prefix: send continue_final_message"},
      {{{"max_tokens", 0}}, "max_tokens: must be an integer in [1"},
      {{{"max_tokens", 3}, {"max_completion_tokens", 4}}, "max_tokens: must be max_completion"},
      {{{"logprobs", 2}}, "logprobs: must be true or false"},
      {{{"top_logprobs", 2}}, "top_logprobs: must be absent without logprobs"},
      {{{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs: must be an integer in [0, 20]"},
      {{{"messages", Json::array()}}, "messages: there is none"},
      {{{"messages", nullptr}}, "messages: must be set"},
      {{{"messages", "hi"}}, "messages: must be a list"},
      {turns(user, "hi"), "messages[1].role: must be set"},
      {turns(user, {{"content", "hi"}}), "messages[1].role: must be set"},
      {turns(user, {{"role", 1}}), "messages[1].role: must be a string"},
      {turns(user, {{"role", "tool"}, {"content", "x"}}), "this model has assistant, system, user"},
      {turns(user, {{"role", "system"}, {"content", "x"}}), "messages[1].role: this model's"},
      {content(nullptr), "messages[1].content: must be a text or a list"},
      {content(1), "messages[1].content: must be a text or a list"},
      {content({"x"}), "messages[1].content: must be a text or a list"},
      {content(Json::array({{{"type", "text"}}})), "messages[1].content: must be a text or a list"},
      {content(Json::array({{{"type", "image_url"}}})), "no part of type image_url; text alone"},
      {content(Json::array({{{"type", "input_audio"}}})), "no part of type input_audio; text"},
      {content(std::string(60, 'a')), "messages: 71 tokens > 49 maximum. This model"},
      {content(std::string(39, 'a')), "This model's maximum context length is 50 tokens"},
      {{{"continue_final_message", true}}, "messages[0].role: continue_final_message needs"},
      {{{"continue_final_message", true}, {"add_generation_prompt", true}}, "exclude each other"},
      {{{"max_completion_tokens", 43}}, "max_tokens: 43 are more than the 42"}};
  for (const auto& [fields, message] : cases) {
    const absl::StatusOr<CompletionRequest> request = ParseChat(fields);
    absl::Status status = request.status();
    if (request.ok()) status = Convert(*request, 0, context_).status();
    EXPECT_FALSE(status.ok()) << fields;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << fields;
  }
  context_.chat = nullptr;
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseChat({}).status()));
}

}  // namespace
}  // namespace fox
