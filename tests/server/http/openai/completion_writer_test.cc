// CompletionWriter: the same events as one body and as chunks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/http/openai/completion_format.h"
#include "tests/fixtures/character_tokenizer.h"

namespace fox {
namespace {

using Json = nlohmann::json;

class CompletionWriterTest : public ::testing::Test {
 protected:
  CompletionWriterTest() {
    context_.tokenizer = &tokenizer_;
    context_.chat = &chat_;
    context_.served_model_name = "m\"";
    context_.limits.lists_per_slot = 4;
    context_.limits.page_bytes = 100;
    request_.prompts.resize(2);
    request_.n = 2;
  }
  std::unique_ptr<AnswerWriter> Writer() {
    return kChatApi.make_writer(request_, context_, "print", "cmpl-1", 7);
  }
  static v1::GenerateDelta Prompt(uint32_t tokens) {
    v1::GenerateDelta event;
    event.mutable_prompt()->set_request_id("id");
    event.mutable_prompt()->set_prompt_tokens(tokens);
    event.mutable_prompt()->set_text("<prompt>");
    event.mutable_prompt()->add_relaxed("f#/properties/a~1\"/not");
    return event;
  }
  static v1::GenerateDelta Text(uint32_t index, const std::string& text) {
    v1::GenerateDelta event;
    event.mutable_delta()->set_index(index);
    event.mutable_delta()->set_text(text);
    event.mutable_delta()->add_token_ids(1);
    return event;
  }
  // That has kept `kept` of `all` pages; -infinity: nothing was evicted.
  static v1::GenerateDelta End(uint32_t index, v1::FinishReason reason, float mass = -kInfinity,
                               uint64_t kept = 0, uint64_t all = 0) {
    v1::GenerateDelta event;
    event.mutable_finish()->set_index(index);
    event.mutable_finish()->set_reason(reason);
    event.mutable_finish()->mutable_usage()->set_completion_tokens(3);
    event.mutable_finish()->mutable_usage()->set_cached_tokens(2);
    v1::AcpStats* acp = event.mutable_finish()->mutable_acp();
    acp->set_max_log_evicted_mass(mass);
    acp->set_log_tolerance(mass == -kInfinity ? mass : -10);
    acp->set_pages_allocated(all);
    acp->set_peak_pages(all);
    acp->set_pages_evicted(all - kept);
    return event;
  }
  // The choices of one prompt of 600 tokens, all of them told; the last chunk.
  static std::string Told(AnswerWriter* writer, const std::vector<v1::GenerateDelta>& ends) {
    writer->AddEvent(0, Prompt(600));
    std::string chunk;
    for (const v1::GenerateDelta& end : ends) {
      EXPECT_EQ(chunk.find("\"fox\""), std::string::npos) << "before " << end.DebugString();
      writer->AddEvent(0, end);
      chunk = writer->TakeChunk(0, end);
    }
    return chunk;
  }

  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  CharacterTokenizer tokenizer_;
  const ChatFormat chat_ = tokenizer_.Chat();
  ConversionContext context_;
  CompletionRequest request_;
};

TEST_F(CompletionWriterTest, OneBodyHoldsAllChoices) {
  request_.echo = true;
  const auto echoing = Writer();
  EXPECT_EQ(echoing->AddEvent(0, Prompt(5)), 8);  // bytes that wait
  EXPECT_EQ(echoing->AddEvent(0, Text(1, "ab")), 8 + 2);
  EXPECT_EQ(echoing->AddEvent(0, Text(0, "ab")), 2);  // the prompt's last copy
  request_.stream = true;
  const auto streaming = Writer();
  EXPECT_EQ(streaming->AddEvent(0, Prompt(5)), 8);
  EXPECT_EQ(streaming->AddEvent(0, Text(1, "ab")), 0);
  EXPECT_EQ(streaming->AddEvent(0, Text(0, "ab")), -8);  // nothing stays behind the chunks
  request_.echo = request_.stream = false;
  const auto writer = Writer();
  for (size_t prompt : {0U, 1U}) {
    SCOPED_TRACE(absl::StrCat("prompt ", prompt));
    EXPECT_EQ(writer->AddEvent(prompt, Prompt(5)), 0);
    for (uint32_t index : {1U, 0U}) {
      EXPECT_EQ(writer->AddEvent(prompt, Text(index, "ab")), 2) << index;
      writer->AddEvent(prompt, Text(index, std::string(1, static_cast<char>('c' + index))));
      writer->AddEvent(prompt, End(index, index == 0 ? v1::STOP : v1::ABORT));
    }
  }
  const Json body = Json::parse(writer->TakeBody());
  EXPECT_EQ(body["id"], "cmpl-1");
  EXPECT_EQ(body["created"], 7);
  EXPECT_EQ(body["model"], "m\"");
  EXPECT_EQ(body["system_fingerprint"], "print");
  ASSERT_EQ(body["choices"].size(), 4u);
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["choices"][3]["text"], "abd");
  EXPECT_EQ(body["choices"][3]["finish_reason"], "abort");
  EXPECT_EQ(body["choices"][2]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"], Json({{"prompt_tokens", 10},
                                 {"completion_tokens", 12},
                                 {"total_tokens", 22},
                                 {"prompt_tokens_details", {{"cached_tokens", 4}}}}));
  // Nothing was evicted, and nothing may be.
  EXPECT_TRUE(body["fox"]["max_log_evicted_mass"].is_null());
  EXPECT_TRUE(body["fox"]["log_tolerance"].is_null());
  EXPECT_EQ(body["fox"]["cached_tokens"], 4);
  EXPECT_EQ(body["fox"]["relaxed"], Json({"f#/properties/a~1\"/not"}));
}

TEST_F(CompletionWriterTest, TheCertificateIsTheWorstOfAllChoicesAndTheirSum) {
  request_.prompts.resize(1);
  const std::vector<v1::GenerateDelta> ends = {End(1, v1::LENGTH, -12.5F, 8, 40),
                                               End(0, v1::LENGTH, -11.25F, 4, 40)};
  const Json fox = {{"max_log_evicted_mass", -11.25},
                    {"log_tolerance", -10},
                    {"kv_bytes", 1200},
                    {"kv_bytes_unpruned", 8000},
                    {"cached_tokens", 2},
                    {"relaxed", {"f#/properties/a~1\"/not"}}};
  // The last event of a stream before [DONE] has it: the end of the last choice, or usage.
  const auto streamed = Writer();
  EXPECT_EQ(Json::parse(Told(streamed.get(), ends).substr(6))["fox"], fox);
  EXPECT_EQ(streamed->LastChunks(), "data: [DONE]\n\n");
  request_.include_usage = true;
  const auto counted = Writer();
  EXPECT_EQ(Told(counted.get(), ends).find("\"fox\""), std::string::npos);
  const std::string last = counted->LastChunks();
  EXPECT_EQ(Json::parse(last.substr(6, last.find("\n\n") - 6))["fox"], fox);
  EXPECT_EQ(Json::parse(counted->TakeBody())["fox"], fox);
}

TEST_F(CompletionWriterTest, TheBoundOfTheAnswerIsTheLargestOfAllChoices) {
  request_.prompts.resize(1);
  std::vector<v1::GenerateDelta> ends = {End(1, v1::LENGTH, -12.5F), End(0, v1::LENGTH, -11.25F)};
  ends[0].mutable_finish()->mutable_acp()->set_bound_log_prob(0.25F);
  ends[1].mutable_finish()->mutable_acp()->set_bound_log_prob(0.125F);
  const auto writer = Writer();
  EXPECT_EQ(Json::parse(Told(writer.get(), ends).substr(6))["fox"]["bound_log_prob"], 0.25);
}

// It has taken the pages of 603 tokens twice.
TEST_F(CompletionWriterTest, APreemptedChoiceDoesNotCountItsPagesTwice) {
  request_.prompts.resize(1);
  request_.n = 1;
  v1::GenerateDelta end = End(0, v1::LENGTH, -11.25F, 24, 80);
  end.mutable_finish()->mutable_acp()->set_peak_pages(16);
  const auto writer = Writer();
  const Json fox = Json::parse(Told(writer.get(), {end}).substr(6))["fox"];
  EXPECT_EQ(fox["kv_bytes"], 1600);
  EXPECT_EQ(fox["kv_bytes_unpruned"], 4000);
}

// vLLM's continuous_usage_stats: each chunk counts the tokens of its choice that have come, the
// last one by the engine.
TEST_F(CompletionWriterTest, EachChunkHasTheUsageSoFar) {
  request_.prompts.resize(1);
  request_.stream = request_.include_usage = request_.continuous_usage = true;
  const auto writer = Writer();
  writer->AddEvent(0, Prompt(5));
  std::vector<int> counts;
  for (const v1::GenerateDelta& event :
       {Text(0, "a"), Text(1, "b"), Text(0, "c"), End(0, v1::LENGTH), End(1, v1::STOP)}) {
    writer->AddEvent(0, event);
    const Json usage = Json::parse(writer->TakeChunk(0, event).substr(6))["usage"];
    EXPECT_EQ(usage["prompt_tokens"], 5);
    counts.push_back(usage["completion_tokens"]);
    EXPECT_EQ(usage["total_tokens"], 5 + counts.back());
  }
  EXPECT_EQ(counts, (std::vector<int>{1, 1, 2, 3, 3}));
}

// Offsets are those of OpenAI's completions: places of the tokens in the text of the answer.
TEST_F(CompletionWriterTest, OffsetsArePlacesInTheEchoedText) {
  request_.prompts.resize(1);
  request_.n = 1;
  request_.chat = false;
  request_.echo = true;
  request_.logprobs = 0;
  constexpr auto kBos = uint32_t{CharacterTokenizer::kBos};
  struct Case {
    const char* name;
    bool text, adds, truncates;
    std::string echoed;
    std::vector<uint32_t> ids;
    std::vector<int> offsets;
  };
  const std::vector<Case> cases = {
      {"text, bos added", true, true, false, "ab", {kBos, 'a', 'b'}, {0, 0, 1, 2}},
      {"text that names bos",
       true,
       true,
       false,
       "<s>a<s>b",
       {kBos, kBos, 'a', kBos, 'b'},
       {0, 0, 3, 4, 7, 8}},
      {"nothing added", true, false, false, "<s>ab", {kBos, 'a', 'b'}, {0, 3, 4, 5}},
      {"truncated", true, true, true, "b", {kBos, 'b'}, {0, 0, 1}},
      {"ids", false, true, false, "ab", {kBos, 'a', kBos, 'b'}, {0, 0, 1, 1, 2}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    request_.prompts[0].Clear();
    request_.settings.Clear();
    if (c.text) request_.prompts[0].set_text("sent");
    if (!c.text)
      request_.prompts[0].mutable_token_ids()->mutable_ids()->Assign(c.ids.begin(), c.ids.end());
    request_.settings.set_add_special_tokens(c.adds);
    if (c.truncates) request_.settings.set_truncate_prompt_tokens(2);
    v1::GenerateDelta prompt, answer = Text(0, "z");
    prompt.mutable_prompt()->set_text(c.echoed);
    for (const uint32_t id : c.ids) {
      if (prompt.prompt().token_ids_size() > 0) {
        prompt.mutable_prompt()->add_prompt_logprobs()->mutable_token()->set_token_id(id);
      }
      prompt.mutable_prompt()->add_token_ids(id);
    }
    answer.mutable_delta()->add_logprobs()->mutable_token()->set_token_id('z');
    const auto writer = kCompletionsApi.make_writer(request_, context_, "print", "cmpl-1", 7);
    for (const v1::GenerateDelta& event : {prompt, answer, End(0, v1::STOP)}) {
      writer->AddEvent(0, event);
    }
    const Json choice = Json::parse(writer->TakeBody())["choices"][0];
    EXPECT_EQ(choice["text"], c.echoed + "z");
    EXPECT_EQ(choice["logprobs"]["text_offset"], Json(c.offsets));
  }
}

TEST_F(CompletionWriterTest, ABosThatTheServerAddedIsInNoList) {
  request_.prompts.resize(1);
  request_.n = 1;
  request_.echo = true;
  request_.logprobs = 0;
  for (uint32_t id : {97U, 98U}) request_.prompts[0].mutable_token_ids()->add_ids(id);
  v1::GenerateDelta prompt;
  prompt.mutable_prompt()->set_text("ab");
  for (uint32_t id : {uint32_t{CharacterTokenizer::kBos}, 97U, 98U}) {
    prompt.mutable_prompt()->add_token_ids(id);
    if (id == CharacterTokenizer::kBos) continue;
    prompt.mutable_prompt()->add_prompt_logprobs()->mutable_token()->set_token_id(id);
  }
  const auto writer = Writer();
  writer->AddEvent(0, prompt);
  writer->AddEvent(0, End(0, v1::STOP));
  const Json lists = Json::parse(writer->TakeBody())["choices"][0]["logprobs"];
  EXPECT_EQ(lists["tokens"], Json({"a", "b"}));
  EXPECT_EQ(lists["token_logprobs"], Json({0.0, 0.0}));
  EXPECT_EQ(lists["text_offset"], Json({0, 1}));
}

// However it is cut, and in a stream as in one body.
TEST_F(CompletionWriterTest, CallsAreNoText) {
  const ChatFormat chat = *ChatFormat::Parse(
      R"({"roles": {"system": {}, "user": {}, "assistant": {}, "tool": {}},
          "tools": {"separator": "\n", "call": "<c>{\"", "arguments": "\": ",
                    "call_end": "}</c>"}})",
      tokenizer_);
  context_.chat = &chat;
  request_.chat = true;
  request_.n = 1;
  request_.prompts.resize(1);
  request_.prompts[0].mutable_messages()->add_tools("{}");
  struct Case {
    std::string text, content, calls;
    v1::FinishReason reason;
    const char* finish;
  };
  const std::string one = R"({"a": "\\\"}</c>", "b": {"c": "{"}})", call = R"(<c>{"f": )";
  const Case cases[] = {
      {"a\n<b", "a\n<b", "", v1::STOP, "stop"},
      {"a\n<", "a\n<", "", v1::STOP, "stop"},
      {"a\n<c", "a\n<c", "", v1::STOP, "stop"},
      {"a <", "a <", "", v1::LENGTH, "length"},
      {"a\n", "a\n", "", v1::LENGTH, "length"},
      {"a\n<c", "a", "", v1::LENGTH, "length"},
      {"a<c>", "a", "", v1::LENGTH, "length"},
      {"a<c>", "a", "", v1::STOP, "stop"},  // by a stop string in the tag
      {call + "{}}</c>\n<", "", "f{};", v1::LENGTH, "length"},
      {"a\n\n" + call + "{}}</c>\n", "a\n\n", "f{};", v1::STOP, "tool_calls"},
      {call + one + "}</c>\n<c>{\"g\": {}}</c>", "", "f" + one + ";g{};", v1::STOP, "tool_calls"},
      {call + one + "}</c>b" + call + "{}}</c>", "b", "f" + one + ";f{};", v1::STOP, "tool_calls"},
      {call + one.substr(0, 9), "", "f" + one.substr(0, 9) + ";", v1::LENGTH, "length"},
      {call + one.substr(0, 9), "", "f" + one.substr(0, 9) + ";", v1::STOP, "stop"},
      {"x<c>{\"", "x", "", v1::LENGTH, "length"}};
  for (const Case& c : cases) {
    for (size_t piece = 1; piece < 50; piece += piece < 5 ? 1 : 22) {
      SCOPED_TRACE(absl::StrCat(c.text, " in pieces of ", piece));
      const auto writer = Writer();
      std::string content, calls, finish;
      int64_t bytes = 0;
      std::set<std::string> ids;
      const auto add = [&](const Json& choice) {
        const Json& message = choice[request_.stream ? "delta" : "message"];
        if (message["content"].is_string()) content += message["content"].get<std::string>();
        for (const Json& part : message.value("tool_calls", Json::array())) {
          if (part.contains("id")) {
            EXPECT_EQ(part["type"], "function") << part;
            EXPECT_EQ(part["index"], ids.size()) << part;
            ids.insert(part["id"].get<std::string>());
            calls += (calls.empty() ? "" : ";") + part["function"]["name"].get<std::string>();
          }
          calls += part["function"]["arguments"].get<std::string>();
        }
        if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
      };
      const auto tell = [&](const v1::GenerateDelta& event) {
        bytes += writer->AddEvent(0, event);
        if (request_.stream) add(Json::parse(writer->TakeChunk(0, event).substr(6))["choices"][0]);
      };
      for (size_t at = 0; at < c.text.size(); at += piece) tell(Text(0, c.text.substr(at, piece)));
      EXPECT_EQ(bytes, request_.stream ? 0 : static_cast<int64_t>(c.text.size()));
      tell(End(0, c.reason));
      if (!request_.stream) add(Json::parse(writer->TakeBody())["choices"][0]);
      EXPECT_EQ(content, c.content);
      EXPECT_EQ(calls.empty() ? "" : calls + ";", c.calls);
      EXPECT_EQ(finish, c.finish);
      request_.stream = !request_.stream;
    }
  }
}

// By the names that DeepSeek's API gave them.
TEST_F(CompletionWriterTest, AThoughtIsApartFromTheContent) {
  const std::string roles = R"({"roles": {"user": {}, "assistant": {}}, )";
  const std::string thinking = R"("thinking": {"prefix": "<t>\n", "suffix": "\n</t>\n\n"}})";
  const ChatFormat formats[] = {
      *ChatFormat::Parse(roles + thinking, tokenizer_),
      *ChatFormat::Parse(roles + R"("generation_prompt": "A:<t>\n", )" + thinking, tokenizer_)};
  request_.chat = true;
  request_.n = 1;
  request_.prompts.resize(1);
  struct Case {
    int format;
    const char *text, *thought, *content;
  };
  const Case cases[] = {{0, "<t>\na\n\nb\n</t>\n\nc\n", "a\n\nb", "c\n"},
                        {0, "\n<t>a</t>c", "a", "c"},
                        {0, "<t>\na<", "a<", ""},
                        {0, "c<t>a</t>", "", "c<t>a</t>"},
                        {0, " <", "", " <"},
                        {0, "<t>\n\n</t>\n\nc", "", "c"},
                        {1, "a\n</t>\n\nc", "a", "c"},
                        {1, "a</t", "a</t", ""},
                        {1, "</t>c</t>", "", "c</t>"}};
  for (const Case& c : cases) {
    for (const size_t piece : {1U, 2U, 3U, 99U}) {
      SCOPED_TRACE(absl::StrCat(c.text, " in pieces of ", piece));
      context_.chat = &formats[c.format];
      request_.stream = !request_.stream;
      const auto writer = Writer();
      std::string thought, content;
      const auto add = [&](const Json& message) {
        if (message["content"].is_string()) content += message["content"].get<std::string>();
        thought += message.value("reasoning_content", "");
      };
      const auto tell = [&](const v1::GenerateDelta& event) {
        writer->AddEvent(0, event);
        if (!request_.stream) return;
        add(Json::parse(writer->TakeChunk(0, event).substr(6))["choices"][0]["delta"]);
      };
      const std::string text = c.text;
      for (size_t at = 0; at < text.size(); at += piece) tell(Text(0, text.substr(at, piece)));
      tell(End(0, v1::STOP));
      if (!request_.stream) add(Json::parse(writer->TakeBody())["choices"][0]["message"]);
      EXPECT_EQ(thought, c.thought);
      EXPECT_EQ(content, c.content);
    }
  }
  // A token for each of hh</t>, as in /v1/responses.
  context_.chat = &formats[0];
  request_.stream = false;
  const auto counts = Writer();
  for (const char byte : std::string("<t>hh</t>a")) counts->AddEvent(0, Text(0, {byte}));
  counts->AddEvent(0, End(0, v1::STOP));
  EXPECT_EQ(Json::parse(counts->TakeBody())["usage"]["completion_tokens_details"],
            Json({{"reasoning_tokens", 6}}));
  // A grammar, or an answer that goes on, has no thought; one that was turned off is none.
  context_.chat = &formats[1];
  request_.stream = false;
  for (int form = 0; form < 3; ++form) {
    CompletionRequest request = request_;
    v1::ChatMessages& chat = *request.prompts[0].mutable_messages();
    if (form == 0) request.settings.mutable_sampling()->set_regex("a");
    if (form == 1) chat.set_continue_final_message(true);
    if (form == 2) chat.set_enable_thinking(false);
    const auto writer = kChatApi.make_writer(request, context_, "print", "cmpl-1", 7);
    writer->AddEvent(0, Text(0, "a</t>"));
    writer->AddEvent(0, End(0, v1::STOP));
    EXPECT_EQ(Json::parse(writer->TakeBody())["choices"][0]["message"]["content"], "a</t>") << form;
  }
}

TEST_F(CompletionWriterTest, LossesAreTheLargestOfAllChoicesAndTheirSum) {
  request_.prompts.resize(1);
  std::vector<v1::GenerateDelta> ends = {End(1, v1::LENGTH, -11, 8, 40),
                                         End(0, v1::LENGTH, -11, 4, 40)};
  for (size_t i = 0; i < ends.size(); ++i) {
    v1::LostMass* lost = ends[i].mutable_finish()->mutable_acp()->mutable_answer_lost();
    lost->set_max_log(-20 - static_cast<float>(i));
    lost->set_log_sum(-16);
    lost->set_max_log_shift(-15 + static_cast<float>(i));
    lost->set_log_sum_shift(-12);
  }
  const auto writer = Writer();
  const Json fox = Json::parse(Told(writer.get(), ends).substr(6))["fox"];
  EXPECT_FALSE(fox.contains("prompt_lost"));
  EXPECT_EQ(fox["answer_lost"]["max_log"], -20);
  EXPECT_EQ(fox["answer_lost"]["max_log_shift"], -14);
  EXPECT_NEAR(fox["answer_lost"]["log_sum"].get<double>(), -16 + std::log(2), 1e-5);
  EXPECT_NEAR(fox["answer_lost"]["log_sum_shift"].get<double>(), -12 + std::log(2), 1e-5);
}

// The page reads these fields.
TEST(WindowsEventTest, EveryFieldIsThereAndInfinityIsNull) {
  v1::Windows windows;
  windows.set_tokens(130);
  windows.set_layers(2);
  windows.set_kv_heads(1);
  windows.set_page_size(64);
  windows.set_page_bytes(16672);
  for (const uint32_t first : {0u, 2u}) windows.add_first_page(first);
  windows.mutable_acp()->set_pages_allocated(6);
  windows.mutable_acp()->set_pages_evicted(2);
  windows.mutable_acp()->set_log_tolerance(-10.5F);
  windows.mutable_acp()->set_bound_log_prob(0.5F);
  windows.mutable_acp()->mutable_prompt_lost()->set_max_log(-14.5F);
  windows.mutable_acp()->mutable_prompt_lost()->set_log_sum(-12.25F);
  windows.mutable_acp()->set_max_log_evicted_mass(-std::numeric_limits<float>::infinity());
  const std::string event = WindowsEvent(windows, /*choice=*/3);
  ASSERT_EQ(event.substr(0, 6), "data: ");
  ASSERT_EQ(event.substr(event.size() - 2), "\n\n");
  EXPECT_EQ(Json::parse(event.substr(6)),
            Json({{"object", "fox.windows"},
                  {"index", 3},
                  {"tokens", 130},
                  {"layers", 2},
                  {"kv_heads", 1},
                  {"page_size", 64},
                  {"page_bytes", 16672},
                  {"first_page", {0, 2}},
                  {"acp",
                   {{"blocks_total", 0},
                    {"blocks_pruned", 0},
                    {"pages_allocated", 6},
                    {"pages_evicted", 2},
                    {"peak_pages", 0},
                    {"log_tolerance", -10.5},
                    {"bound_log_prob", 0.5},
                    {"prompt_lost", {{"max_log", -14.5}, {"log_sum", -12.25}}},
                    {"max_log_evicted_mass", nullptr}}}}));
}

TEST_F(CompletionWriterTest, AChatHasMessagesAndDeltas) {
  request_.chat = true;
  request_.prompts.resize(1);
  const auto told = [&](AnswerWriter* writer, const v1::GenerateDelta& event) {
    writer->AddEvent(0, event);
    return request_.stream ? Json::parse(writer->TakeChunk(0, event).substr(std::strlen("data: ")))
                           : Json();
  };
  const auto whole = Writer();
  for (uint32_t index : {0U, 1U}) {
    told(whole.get(), Text(index, "ab"));
    told(whole.get(), End(index, v1::STOP));
  }
  const Json body = Json::parse(whole->TakeBody());
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][1]["message"],
            Json({{"role", "assistant"}, {"content", "ab"}, {"refusal", nullptr}}));
  EXPECT_EQ(body["choices"][1]["finish_reason"], "stop");
  request_.stream = true;
  const auto writer = Writer();
  const Json chunk = told(writer.get(), Text(1, "a"));
  EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  EXPECT_EQ(chunk["choices"][0]["index"], 1);
  EXPECT_EQ(chunk["choices"][0]["delta"], Json({{"role", "assistant"}, {"content", "a"}}));
  EXPECT_EQ(told(writer.get(), Text(1, "b"))["choices"][0]["delta"], Json({{"content", "b"}}));
  EXPECT_EQ(told(writer.get(), End(0, v1::LENGTH))["choices"][0]["delta"],
            Json({{"role", "assistant"}, {"content", ""}}));
}

}  // namespace
}  // namespace fox
