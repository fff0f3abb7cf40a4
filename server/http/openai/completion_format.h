// CompletionFormat: the form of POST /v1/completions and /v1/chat/completions. CompletionWriter:
// events of fox.v1 become choices of OpenAI's completions, as one answer or as server-sent events.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fox/v1/inference.pb.h"
#include "server/calls/format.h"
#include "server/http/openai/completion_logprobs.h"
#include "server/http/openai/completion_request.h"
#include "server/http/openai/tool_call_reader.h"
#include "server/http/port/http_exchange.h"

namespace fox {

// The choices of one call. Not thread-safe. `request` and `context` must outlive it.
class CompletionWriter {
 public:
  // `fingerprint`: of the server; `id`: of the answer; `created`: seconds since 1970.
  CompletionWriter(const CompletionRequest& request, const ConversionContext& context,
                   const std::string& fingerprint, const std::string& id, int64_t created);

  // Adds an event of request.prompts[prompt]. Returns the bytes by which the writer has grown.
  int64_t AddEvent(size_t prompt, const v1::GenerateDelta& event);
  // The new part of the choice that `event`, added last, belongs to, as a server-sent event; "" for
  // events of the prompt, which come with the first of a choice. The event that ends the last
  // choice has the certificate, unless LastChunks has an event for it.
  std::string TakeChunk(size_t prompt, const v1::GenerateDelta& event);
  // The end of a stream, after the last chunk: usage if it was asked for, with the certificate, and
  // [DONE].
  std::string LastChunks() const;
  // The answer that is not streamed; once.
  std::string TakeBody();

 private:
  struct Prompt {
    std::string text;  // empty unless it is echoed
    std::optional<CompletionLogprobs> logprobs;
    uint32_t tokens = 0;
  };
  struct Choice {
    bool begun = false, role_sent = false;
    std::string text;
    std::optional<ToolCallReader> reader;  // if there are tools
    std::vector<ToolCallPart> calls;
    std::optional<CompletionLogprobs> logprobs;
    std::string finish = "null", stop = "null";  // JSON
    uint32_t tokens = 0;
    uint32_t cached_tokens = 0;  // of the prompt
    v1::AcpStats acp;
  };
  void AddPrompt(const v1::PromptInfo& info, size_t index);
  void Begin(const Prompt& prompt, Choice* choice);
  // Returns the bytes that are not in the choice's text, but in its calls or in the reader.
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
  size_t finished_ = 0;  // choices
};

// The server-sent event with the pages that each head of a choice keeps, beside OpenAI's API: for
// the page. {"object":"fox.windows","index":CHOICE, then the fields of v1::Windows}, -infinity as
// null.
std::string WindowsEvent(const v1::Windows& windows, size_t choice);

// Chunks are made as events come, on the call's lane: the one HTTP thread only writes them.
class CompletionFormat final : public Format {
 public:
  // Takes the body of `sent`. `head`, of the answer, is set before the first bytes. Both must
  // outlive the format.
  CompletionFormat(const ConversionContext& context, std::string fingerprint, bool chat,
                   HttpRequest* sent, HttpAnswer* head);

  absl::StatusOr<CallOutline> ParseMessage() override;
  absl::StatusOr<GenerationSpec> ConvertPrompt(size_t prompt) override;
  void AddEvent(CallEvent event) override;
  void AddKeepAlive() override { keep_alive_ = true; }
  bool HasOutput() const override { return !chunks_.empty() || !windows_.empty() || keep_alive_; }
  Output TakeOutput(bool last) override;
  int64_t held_bytes() const override { return held_bytes_; }
  void DropContents() override;
  std::string EncodeFailure(const absl::Status& status, bool stream_has_begun) const override;

 private:
  const ConversionContext& context_;
  const std::string fingerprint_;
  const bool chat_;
  const std::string sent_id_;  // X-Request-Id
  HttpAnswer* const head_;
  std::string body_;
  // Written by ParseMessage, constant afterwards.
  CompletionRequest request_;
  std::string id_;

  std::optional<CompletionWriter> writer_;
  std::string chunks_;                                 // that wait
  std::map<size_t, std::string> windows_;              // the newest event, by choice
  std::vector<std::pair<RequestId, int64_t>> tokens_;  // in the chunks
  bool keep_alive_ = false;                            // a comment is due
  int64_t held_bytes_ = 0;
};

}  // namespace fox
