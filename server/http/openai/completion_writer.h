// CompletionWriter: events of fox.v1 become choices of OpenAI's completions and chat completions,
// as one answer or as server-sent events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/http/openai/answer_reader.h"
#include "server/http/openai/completion_format.h"
#include "server/http/openai/completion_logprobs.h"

namespace fox {

// The choices of one call. Not thread-safe. `request` and `context` must outlive it.
class CompletionWriter final : public AnswerWriter {
 public:
  // `fingerprint`: of the server; `id`: of the answer; `created`: seconds since 1970.
  CompletionWriter(const CompletionRequest& request, const ConversionContext& context,
                   const std::string& fingerprint, const std::string& id, int64_t created);

  int64_t AddEvent(size_t prompt, const v1::GenerateDelta& event) override;
  // The new part of the choice that `event`, added last, belongs to, as a server-sent event; "" for
  // events of the prompt, which come with the first of a choice. The event that ends the last
  // choice has the certificate, unless LastChunks has an event for it.
  std::string TakeChunk(size_t prompt, const v1::GenerateDelta& event) override;
  // The end of a stream, after the last chunk: usage if it was asked for, with the certificate, and
  // [DONE].
  std::string LastChunks() override;
  std::string TakeBody() override;

 private:
  struct Prompt {
    std::string text;  // empty unless it is echoed
    std::optional<CompletionLogprobs> logprobs;
    uint32_t tokens = 0;
  };
  struct Choice {
    bool begun = false, role_sent = false;
    std::string text, thought;
    std::optional<AnswerReader> reader;  // of a chat
    std::vector<AnswerPart> calls;
    std::optional<CompletionLogprobs> logprobs;
    std::string finish = "null", stop = "null";  // JSON
    uint32_t tokens = 0;
    uint32_t cached_tokens = 0;  // of the prompt
    v1::AcpStats acp;
  };
  void AddPrompt(const v1::PromptInfo& info, size_t index);
  void Begin(const Prompt& prompt, Choice* choice);
  // Returns the bytes that are not in the choice's text, but in its thought, its calls or the
  // reader.
  static int64_t AddText(const std::string& text, Choice* choice);
  static void AddParts(std::vector<AnswerPart> parts, Choice* choice);
  std::string TakeChoice(size_t index);
  std::string TakeMessage(Choice* choice) const;
  int64_t CachedTokens() const;
  std::string Usage() const;
  // `,"fox":{...}`: the certificate and the memory of all choices together.
  std::string Certificate() const;
  size_t IndexOf(size_t prompt, const v1::GenerateDelta& event) const;

  const CompletionRequest& request_;
  const ConversionContext& context_;
  const bool skip_special_;
  const std::string head_;  // of every object: id, model
  std::vector<Prompt> prompts_;
  std::vector<std::string> relaxed_;  // PromptInfo's, of the first prompt
  std::vector<Choice> choices_;
  size_t finished_ = 0;  // choices
};

}  // namespace fox
