// CompletionWriter: events of fox.v1 become choices of OpenAI's completions, of text or of a
// chat, as one answer or as server-sent events. Read completion_call.h next.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fox/v1/inference.pb.h"
#include "server/http/completion_logprobs.h"
#include "server/http/completion_request.h"
#include "server/http/tool_call_reader.h"

namespace fox {

// The choices of one call. Not thread-safe. `request` and `context` must outlive it.
class CompletionWriter {
 public:
  // `fingerprint`: of the server; `id`: of the answer; `created`: seconds since 1970.
  CompletionWriter(const CompletionRequest& request, const ConversionContext& context,
                   const std::string& fingerprint, const std::string& id, int64_t created);

  // Takes an event of request.prompts[prompt]. Returns the bytes by which this has grown.
  int64_t Add(size_t prompt, const v1::GenerateDelta& event);
  // What is new of the choice that `event`, added last, belongs to: a server-sent event; "" for
  // events of the prompt, which come with the first of a choice. The one that ends the last choice
  // has the certificate, unless LastChunks has an event for it.
  std::string TakeChunk(size_t prompt, const v1::GenerateDelta& event);
  // After the last chunk: usage where it was asked for, with the certificate, and [DONE].
  std::string LastChunks() const;
  // The answer that is not streamed; once.
  std::string TakeBody();

 private:
  struct Prompt {
    std::string text;  // where it is echoed
    std::optional<CompletionLogprobs> logprobs;
    uint32_t tokens = 0;
  };
  struct Choice {
    bool begun = false, told = false;
    std::string text;
    std::optional<ToolCallReader> reader;  // where there are tools
    std::vector<ToolCallPart> calls;
    std::optional<CompletionLogprobs> logprobs;
    std::string finish = "null", stop = "null";  // JSON
    uint32_t tokens = 0;
    uint32_t cached_tokens = 0;  // of the prompt
    v1::AcpStats acp;
  };
  void AddPrompt(const v1::PromptInfo& info, size_t index);
  void Begin(const Prompt& prompt, Choice* choice);
  // Returns the bytes that are not in the choice's text: of its calls, or what waits.
  static int64_t AddText(const std::string& text, Choice* choice);
  std::string TakeChoice(size_t index);
  static std::string TakeMessage(Choice* choice);
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
  size_t finished_ = 0;  // of them
};

// The server-sent event for what each head of a choice keeps, beside OpenAI's API: for the page.
// {"object":"fox.windows","index":CHOICE, then the fields of v1::Windows}, -infinity as null.
std::string WindowsEvent(const v1::Windows& windows, size_t choice);

}  // namespace fox
