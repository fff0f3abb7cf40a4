// Messages of clients: the answers of this server and of OpenAI's are valid history.
#include "server/http/openai/chat_messages.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/http/openai/completion_request.h"
#include "tests/fixtures/http_api_test.h"

namespace fox {
namespace {

constexpr char kFormat[] = R"({"later_system": true, "roles": {
    "system": {"prefix": "S:", "suffix": "\n"}, "user": {"prefix": "U:", "suffix": "\n"},
    "assistant": {"prefix": "A:", "suffix": "\n"}, "tool": {"prefix": "T:", "suffix": "\n"}},
    "tools": {"separator": "\n", "call": "<c>{\"", "arguments": "\": ", "call_end": "}</c>",
    "next_response": "|"}, "thinking": {"prefix": "<t>\n", "suffix": "\n</t>\n\n"}})";

class ChatMessagesTest : public HttpApiTest {
 protected:
  ChatMessagesTest() : HttpApiTest(kChatApi, kFormat) {}
  std::string Told(const std::string& messages) {
    return HttpApiTest::Told(absl::StrCat("\"messages\": [", messages, "]"));
  }
};

constexpr char kUser[] = R"({"role": "user", "content": "u"})";

TEST_F(ChatMessagesTest, AnAssistantNeedsNoContent) {
  // The third is what OpenAI's own client dumps.
  for (const char* message :
       {R"({"role": "assistant"})", R"({"role": "assistant", "content": null, "tool_calls": []})",
        R"({"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null,
            "function_call": null, "tool_calls": null})",
        R"({"role": "assistant", "content": []})"}) {
    EXPECT_EQ(Told(absl::StrCat(kUser, ",", message, ",", kUser)), "U:u\nA:\nU:u\n") << message;
  }
  for (const char* refused : {R"("content": null, "refusal": "no")",
                              R"("content": [{"type": "refusal", "refusal": "no"}])"}) {
    EXPECT_EQ(Told(absl::StrCat(kUser, R"(,{"role": "assistant", )", refused, "},", kUser)),
              "U:u\nA:no\nU:u\n")
        << refused;
  }
  EXPECT_EQ(Told(R"({"role": "user", "content": null})"),
            R"(messages[0].content: must be a text or a list of {"type": "text", "text"})");
  EXPECT_EQ(Told(R"({"role": "user", "content": [{"type": "text", "text": "a\u0000b"}]})"),
            std::string("U:a\0b\n", 6));
}

// Its arguments are a text: JSON as templates write it, or as much as the model wrote.
TEST_F(ChatMessagesTest, ACallIsTakenBackWhateverItsArguments) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("{\"z\":1,\"a\":\"\\u00e9:,\"}")", "{\"z\": 1, \"a\": \"\u00e9:,\"}"},
      {R"("{\"n\":[9007199254740993,25000000000000000001,1.0,1E5]}")",
       R"({"n": [9007199254740993, 25000000000000000001, 1.0, 1E5]})"},
      {R"({"n":25000000000000000001, "a": []})", R"({"n": 25000000000000000001, "a": []})"},
      {R"("")", "{}"},
      {"null", "{}"},
      {R"("{\"text\": \"abc")", "{\"text\": \"abc"},
      {R"("{\"a\":1,")", "{\"a\":1,"},
      {R"("{text: 1}")", "{text: 1}"},
      {R"("{\"a\": NaN}")", "{\"a\": NaN}"},
      {R"("[1,2]")", "[1, 2]"},
      {R"("null")", "null"},
      {R"("\"x\"")", "\"x\""},
  };
  for (const auto& [arguments, told] : cases) {
    SCOPED_TRACE(arguments);
    EXPECT_EQ(Told(absl::StrCat(kUser, R"(,{"role": "assistant", "content": null, "tool_calls": [
                  {"index": 0, "id": "c", "type": "function", "function": {"name": "f",
                  "arguments": )",
                                arguments, R"(}}]},
                  {"role": "tool", "tool_call_id": "c", "content": null})")),
              absl::StrCat("U:u\nA:<c>{\"f\": ", told, "}</c>\nT:\n"));
  }
  for (const char* wrong : {R"({"name": "f", "arguments": 1})", R"({"arguments": "{}"})",
                            R"({"name": "f", "arguments": ["x"]})", "1"}) {
    EXPECT_EQ(
        Told(absl::StrCat(R"({"role": "assistant", "tool_calls": [{"function": )", wrong, "}]}"))
            .find("messages[0].tool_calls: each must have"),
        0u)
        << wrong;
  }
}

// Answers belong to calls by tool_call_id (OpenAI's and Anthropic's references), and tools that run
// side by side end in any order.
TEST_F(ChatMessagesTest, AnswersFollowInTheOrderOfTheirCalls) {
  const auto asked = [](const char* one, const char* other) {
    const auto call = [](const char* id) {
      return absl::StrCat(R"({"id": )", id, R"(, "function": {"name": "f"}})");
    };
    return absl::StrCat(kUser, R"(,{"role": "assistant", "tool_calls": [)", call(one), ",",
                        call(other), "]}");
  };
  const auto answer = [](const char* id, const char* text) {
    return absl::StrCat(R"(,{"role": "tool", "tool_call_id": )", id, R"(, "content": ")", text,
                        "\"}");
  };
  const std::string calls = "U:u\nA:<c>{\"f\": {}}</c>\n<c>{\"f\": {}}</c>\n";
  const std::string a = answer(R"("a")", "1"), b = answer(R"("b")", "2");
  const std::string ab = asked(R"("a")", R"("b")");
  EXPECT_EQ(Told(ab + a + b), calls + "T:1|2\n");
  EXPECT_EQ(Told(ab + b + a), calls + "T:1|2\n");
  EXPECT_EQ(Told(absl::StrCat(ab, b, a, ",", ab, b, a)),
            absl::StrCat(calls, "T:1|2\n", calls, "T:1|2\n"));
  // Not all have come, or their ids do not say which they are.
  EXPECT_EQ(Told(ab + b), calls + "T:2\n");
  EXPECT_EQ(Told(ab + b + b), calls + "T:2|2\n");
  EXPECT_EQ(Told(ab + b + answer("null", "3")), calls + "T:2|3\n");
  EXPECT_EQ(Told(asked(R"("a")", R"("a")") + b + a), calls + "T:2|1\n");
  EXPECT_EQ(Told(asked("1", "null") + b + a), calls + "T:2|1\n");
}

TEST_F(ChatMessagesTest, ThoughtsThatCameApartStandWhereTheTemplateHasThem) {
  const std::string call = R"(, "tool_calls": [{"function": {"name": "f"}}]})";
  const std::string early =
      R"({"role": "assistant", "content": "\n\na", "reasoning_content": "t"})";
  const std::string late =
      absl::StrCat(R"({"role": "assistant", "content": "\n\nb", "reasoning": "\nt\n")", call);
  const std::string answer = R"({"role": "tool", "content": "r"})";
  EXPECT_EQ(Told(absl::StrCat(kUser, ",", early, ",", kUser, ",", late, ",", answer)),
            "U:u\nA:\n\na\nU:u\nA:<t>\nt\n</t>\n\nb\n<c>{\"f\": {}}</c>\nT:r\n");
  EXPECT_EQ(Told(absl::StrCat(kUser, R"(,{"role": "assistant", "reasoning_content": "", )",
                              R"("content": "a"},)", kUser)),
            "U:u\nA:a\nU:u\n");
}

TEST_F(ChatMessagesTest, AnEffortIsTheSwitchOfThoughts) {
  const auto told = [&](const char* thinking, const char* fields) {
    const std::string format = absl::StrCat(
        R"({"roles": {"user": {}, "assistant": {}}, "generation_prompt": "A:")", thinking, "}");
    const ChatFormat chat = *ChatFormat::Parse(format, tokenizer_);
    context_.chat = &chat;
    const auto request = ParseCompletion(
        absl::StrCat("{\"messages\": [", kUser, "], ", fields, "}"), context_, /*chat=*/true);
    if (!request.ok()) return std::string(request.status().message());
    const absl::StatusOr<GenerationSpec> spec = Convert(*request, 0, context_);
    if (!spec.ok()) return std::string(spec.status().message());
    return Detokenize(tokenizer_, spec->sequences[0].prompt, /*skip_special=*/false);
  };
  const char* with_switch =
      R"(, "thinking": {"prefix": "<t>", "suffix": "</t>", "skip": "<t></t>"})";
  const char* always = R"(, "thinking": {"prefix": "<t>", "suffix": "</t>"})";
  for (const char* effort : {"minimal", "low", "medium", "high", "xhigh", "max"}) {
    const std::string field = absl::StrCat("\"reasoning_effort\": \"", effort, "\"");
    EXPECT_EQ(told(with_switch, field.c_str()), "uA:") << effort;
    EXPECT_EQ(told(always, field.c_str()), "uA:") << effort;
    EXPECT_EQ(told("", field.c_str()),
              "reasoning_effort: must be none or absent: the model has no thoughts")
        << effort;
  }
  const char* none = R"("reasoning_effort": "none")";
  EXPECT_EQ(told(with_switch, none), "uA:<t></t>");
  EXPECT_EQ(told(always, none),
            "reasoning_effort: must be other than none: the model always thinks");
  EXPECT_EQ(told("", none), "uA:");
  const char* off = R"("chat_template_kwargs": {"enable_thinking": false})";
  EXPECT_EQ(told(with_switch, off), "uA:<t></t>");
  EXPECT_EQ(told("", off), "uA:");
  EXPECT_EQ(told(with_switch, R"("reasoning_effort": "much")"),
            "reasoning_effort: must be none, minimal, low, medium, high, xhigh or max");
  EXPECT_EQ(told(with_switch, R"("reasoning_effort": "none", "chat_template_kwargs":
                                 {"enable_thinking": true})"),
            "reasoning_effort: must be as chat_template_kwargs, or absent");
}

TEST_F(ChatMessagesTest, TheSystemMaySpeakLaterWhereItsTemplateRendersIt) {
  EXPECT_EQ(Told(absl::StrCat(R"({"role": "developer", "content": "a"},)", kUser,
                              R"(,{"role": "system", "content": "b"})")),
            "S:a\nU:u\nS:b\n");
}

}  // namespace
}  // namespace fox
