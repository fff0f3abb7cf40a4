// CompletionWriter: the same events as one body and as chunks.
#include "server/http/completion_writer.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/e2e/character_tokenizer.h"

namespace fox {
namespace {

using Json = nlohmann::json;

class CompletionWriterTest : public ::testing::Test {
 protected:
  CompletionWriterTest() {
    context_.tokenizer = &tokenizer_;
    context_.served_model_name = "m\"";
    request_.prompts.resize(2);
    request_.n = 2;
  }
  static v1::GenerateDelta Prompt(uint32_t tokens) {
    v1::GenerateDelta event;
    event.mutable_prompt()->set_request_id("id");
    event.mutable_prompt()->set_prompt_tokens(tokens);
    event.mutable_prompt()->set_text("<prompt>");
    return event;
  }
  static v1::GenerateDelta Text(uint32_t index, const std::string& text) {
    v1::GenerateDelta event;
    event.mutable_delta()->set_index(index);
    event.mutable_delta()->set_text(text);
    return event;
  }
  static v1::GenerateDelta End(uint32_t index, v1::FinishReason reason) {
    v1::GenerateDelta event;
    event.mutable_finish()->set_index(index);
    event.mutable_finish()->set_reason(reason);
    event.mutable_finish()->mutable_usage()->set_completion_tokens(3);
    return event;
  }

  CharacterTokenizer tokenizer_;
  ConversionContext context_;
  CompletionRequest request_;
};

TEST_F(CompletionWriterTest, OneBodyHoldsAllChoices) {
  CompletionWriter writer(request_, context_, "cmpl-1", 7);
  for (size_t prompt : {0U, 1U}) {
    EXPECT_EQ(writer.Add(prompt, Prompt(5)), 0);
    for (uint32_t index : {1U, 0U}) {
      EXPECT_EQ(writer.Add(prompt, Text(index, "ab")), 2);
      writer.Add(prompt, Text(index, std::string(1, static_cast<char>('c' + index))));
      writer.Add(prompt, End(index, index == 0 ? v1::STOP : v1::ABORT));
    }
  }
  const Json body = Json::parse(writer.TakeBody());
  EXPECT_EQ(body["id"], "cmpl-1");
  EXPECT_EQ(body["created"], 7);
  EXPECT_EQ(body["model"], "m\"");
  ASSERT_EQ(body["choices"].size(), 4u);
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["choices"][3]["text"], "abd");
  EXPECT_EQ(body["choices"][3]["finish_reason"], "abort");
  EXPECT_EQ(body["choices"][2]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"],
            Json({{"prompt_tokens", 10}, {"completion_tokens", 12}, {"total_tokens", 22}}));
}

TEST_F(CompletionWriterTest, AChunkHoldsWhatIsNew) {
  request_.echo = request_.include_usage = true;
  CompletionWriter writer(request_, context_, "cmpl-1", 7);
  const auto chunk = [&](size_t prompt, const v1::GenerateDelta& event) {
    writer.Add(prompt, event);
    const std::string bytes = writer.TakeChunk(prompt, event);
    EXPECT_EQ(bytes.substr(0, 6), "data: ");
    EXPECT_EQ(bytes.substr(bytes.size() - 2), "\n\n");
    return Json::parse(bytes.substr(6))["choices"][0];
  };
  EXPECT_EQ(writer.Add(1, Prompt(5)), 8);
  EXPECT_EQ(writer.TakeChunk(1, Prompt(5)), "");
  EXPECT_EQ(chunk(1, Text(1, "a"))["text"], "<prompt>a");
  EXPECT_EQ(chunk(1, Text(1, "b"))["text"], "b");
  EXPECT_EQ(chunk(1, Text(0, "c"))["text"], "<prompt>c");
  const Json last = chunk(1, End(1, v1::LENGTH));
  EXPECT_EQ(last["index"], 3);
  EXPECT_EQ(last["text"], "");
  EXPECT_EQ(last["finish_reason"], "length");
  const std::string ends = writer.LastChunks();
  EXPECT_NE(ends.find("\"choices\":[],\"usage\":{\"prompt_tokens\":5"), std::string::npos);
  EXPECT_EQ(ends.substr(ends.size() - 14), "data: [DONE]\n\n");
}

}  // namespace
}  // namespace fox
