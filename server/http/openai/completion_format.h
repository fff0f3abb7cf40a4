// CompletionFormat: the form of a call that answers a prompt over HTTP, whichever API it comes in.
// An HttpApi parses the body into a CompletionRequest, and its AnswerWriter writes events of fox.v1
// in the API's own form; all between the two is the same.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fox/v1/inference.pb.h"
#include "server/calls/format.h"
#include "server/http/openai/completion_request.h"
#include "server/http/port/http_exchange.h"

namespace fox {

// The answer of one call, as one body or as server-sent events. Not thread-safe.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Adds an event of request.prompts[prompt]. Returns by how many bytes the writer has grown, of a
  // stream once the event's chunk is taken; negative if it has let some go.
  virtual int64_t AddEvent(size_t prompt, const v1::GenerateDelta& event) = 0;
  // The server-sent events for `event`, added last; "" for events of the prompt, which come with
  // the first of an answer.
  virtual std::string TakeChunk(size_t prompt, const v1::GenerateDelta& event) = 0;
  // The end of a stream, after the last chunk.
  virtual std::string LastChunks() = 0;
  // The answer that is not streamed; once.
  virtual std::string TakeBody() = 0;
  // The last event of a stream that has failed.
  virtual std::string EncodeFailure(const absl::Status& status) const = 0;
  // Drops the answer so far: EncodeFailure is all that follows.
  virtual void DropContents() = 0;
};

// How requests and answers of one path are written.
struct HttpApi {
  const char* path;
  const char* id_prefix;  // of the answer's id
  absl::StatusOr<CompletionRequest> (*parse)(const std::string& body,
                                             const ConversionContext& context);
  // `fingerprint`: of the server; `id`: of the answer; `created`: seconds since 1970. The writer
  // refers to `request` and `context`.
  std::unique_ptr<AnswerWriter> (*make_writer)(const CompletionRequest& request,
                                               const ConversionContext& context,
                                               const std::string& fingerprint,
                                               const std::string& id, int64_t created);
  std::string (*error_body)(const absl::Status& status);
  const char* keep_alive;  // an event or comment that means nothing
};
extern const HttpApi kCompletionsApi, kChatApi;  // completion_writer.cc
extern const HttpApi kResponsesApi;              // responses_api.cc
extern const HttpApi kMessagesApi;               // http/anthropic/messages_api.cc

// A server-sent event; "" for `name`: it has none.
std::string ServerSentEvent(const std::string& data, const std::string& name = "");

// A sequence that has ended.
struct EndedSequence {
  int64_t tokens = 0;  // of prompt and answer
  v1::AcpStats acp;
};
// `,"fox":{...}`: the certificate and the memory of all sequences together. `relaxed`:
// PromptInfo's.
std::string FoxObject(const std::vector<EndedSequence>& sequences, int64_t cached_tokens,
                      const std::vector<std::string>& relaxed, const ConversionContext& context);

// The server-sent event with the pages that each head of a choice keeps, beside OpenAI's API: for
// the page. {"object":"fox.windows","index":CHOICE, then the fields of v1::Windows}, -infinity as
// null.
std::string WindowsEvent(const v1::Windows& windows, size_t choice);

// Chunks are made as events come, on the call's lane: the one HTTP thread only writes them.
class CompletionFormat final : public Format {
 public:
  // Takes the body of `sent`. `head`, of the answer, is set before the first bytes. All four must
  // outlive the format.
  CompletionFormat(const HttpApi& api, const ConversionContext& context, std::string fingerprint,
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
  const HttpApi& api_;
  const ConversionContext& context_;
  const std::string fingerprint_;
  const std::string sent_id_;  // X-Request-Id
  HttpAnswer* const head_;
  std::string body_;
  // Written by ParseMessage, constant afterwards.
  CompletionRequest request_;
  std::string id_;

  std::unique_ptr<AnswerWriter> writer_;
  std::string chunks_;                                 // that wait
  std::map<size_t, std::string> windows_;              // the newest event, by choice
  std::vector<std::pair<RequestId, int64_t>> tokens_;  // in the chunks
  bool keep_alive_ = false;                            // a comment is due
  int64_t held_bytes_ = 0;
};

}  // namespace fox
