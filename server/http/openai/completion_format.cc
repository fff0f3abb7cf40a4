// CompletionFormat: choices first, then the format around them. See completion_format.h.
#include "server/http/openai/completion_format.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"
#include "kernels/paging/paged_kv.h"
#include "server/http/port/http_error.h"

namespace fox {
namespace {

std::string Head(const CompletionRequest& request, const std::string& id, int64_t created,
                 const std::string& model, const std::string& fingerprint) {
  const char* object = !request.chat    ? "text_completion"
                       : request.stream ? "chat.completion.chunk"
                                        : "chat.completion";
  return absl::StrCat("{\"id\":", JsonString(id), ",\"object\":\"", object,
                      "\",\"created\":", created, ",\"model\":", JsonString(model),
                      ",\"system_fingerprint\":", JsonString(fingerprint), ",\"choices\":[");
}

const char* ReasonOf(v1::FinishReason reason) {
  if (reason == v1::LENGTH) return "\"length\"";
  return reason == v1::ABORT ? "\"abort\"" : "\"stop\"";
}

// The stop string or id that ended a text; null for the model's own end.
std::string StopOf(const v1::Finish& finish) {
  if (finish.has_stop_str()) return JsonString(finish.stop_str());
  return finish.has_stop_token_id() ? absl::StrCat(finish.stop_token_id()) : "null";
}

std::string ServerSentEvent(const std::string& data) {
  return absl::StrCat("data: ", data, "\n\n");
}

}  // namespace

CompletionWriter::CompletionWriter(const CompletionRequest& request,
                                   const ConversionContext& context, const std::string& fingerprint,
                                   const std::string& id, int64_t created)
    : request_(request),
      context_(context),
      skip_special_(!request.settings.output().has_skip_special_tokens() ||
                    request.settings.output().skip_special_tokens()),
      head_(Head(request, id, created, context.served_model_name, fingerprint)),
      prompts_(request.prompts.size()),
      choices_(request.prompts.size() * static_cast<size_t>(request.n)) {
  FOX_CHECK(request.n >= 1 && !request.prompts.empty());
}

int64_t CompletionWriter::AddEvent(size_t prompt, const v1::GenerateDelta& event) {
  const auto bytes_of = [](const auto& part) {
    return static_cast<int64_t>(part.text.size()) +
           (part.logprobs.has_value() ? part.logprobs->bytes() : 0);
  };
  if (event.has_prompt()) {
    FOX_CHECK(prompt < prompts_.size());
    const int64_t before = bytes_of(prompts_[prompt]);
    AddPrompt(event.prompt(), prompt);
    return bytes_of(prompts_[prompt]) - before;
  }
  Choice& choice = choices_[IndexOf(prompt, event)];
  int64_t beside = 0;
  const int64_t before = bytes_of(choice);
  if (!choice.begun) Begin(prompts_[prompt], &choice);
  if (event.has_delta()) {
    beside = AddText(event.delta().text(), &choice);
    if (choice.logprobs.has_value()) {
      for (const v1::TokenLogprobs& token : event.delta().logprobs()) choice.logprobs->Add(token);
    }
  } else {
    choice.finish = ReasonOf(event.finish().reason());
    if (choice.reader.has_value()) {
      choice.reader->EndText(event.finish().reason() != v1::STOP, &choice.text);
    }
    const bool calls = choice.reader.has_value() && choice.reader->calls() > 0;
    if (calls && event.finish().reason() == v1::STOP) choice.finish = "\"tool_calls\"";
    choice.stop = StopOf(event.finish());
    choice.tokens = event.finish().usage().completion_tokens();
    choice.cached_tokens = event.finish().usage().cached_tokens();
    choice.acp = event.finish().acp();
    FOX_CHECK(finished_ < choices_.size());
    ++finished_;
  }
  return bytes_of(choice) - before + beside;
}

int64_t CompletionWriter::AddText(const std::string& text, Choice* choice) {
  const size_t before = choice->text.size();
  if (choice->reader.has_value()) {
    choice->reader->Read(text, &choice->text, &choice->calls);
  } else {
    choice->text += text;
  }
  return static_cast<int64_t>(text.size()) - static_cast<int64_t>(choice->text.size() - before);
}

void CompletionWriter::AddPrompt(const v1::PromptInfo& info, size_t index) {
  Prompt* const prompt = &prompts_[index];
  if (!info.request_id().empty()) prompt->tokens = info.prompt_tokens();
  if (index == 0) {
    for (const std::string& place : info.relaxed()) relaxed_.push_back(JsonString(place));
  }
  if (!request_.echo) return;
  prompt->text += info.text();
  if (request_.logprobs < 0) return;
  if (!prompt->logprobs.has_value()) {
    prompt->logprobs.emplace(*context_.tokenizer, skip_special_, /*at_text_start=*/true);
    if (!info.token_ids().empty()) {
      const v1::GenerateRequest& sent = request_.prompts[index];
      const bool bos_was_added =
          sent.has_token_ids() && info.token_ids_size() > sent.token_ids().ids_size();
      const auto first = static_cast<int32_t>(info.token_ids(0));
      // A client that counts in its own ids finds its own ids.
      bos_was_added ? prompt->logprobs->SkipFirst(first) : prompt->logprobs->AddFirst(first);
    }
  }
  for (const v1::TokenLogprobs& token : info.prompt_logprobs()) prompt->logprobs->Add(token);
}

void CompletionWriter::Begin(const Prompt& prompt, Choice* choice) {
  choice->begun = true;
  choice->text = prompt.text;
  const v1::ChatMessages& chat = request_.prompts[0].messages();
  if (chat.tools_size() > 0) {
    choice->reader.emplace(*context_.chat->tools(), chat.call_required() || chat.has_call_name());
  }
  if (request_.logprobs < 0) return;
  choice->logprobs.emplace(*context_.tokenizer, skip_special_, /*at_text_start=*/false,
                           request_.chat);
  if (!prompt.logprobs.has_value()) return;
  choice->logprobs->Follow(*prompt.logprobs, CountCharacters(prompt.text));
}

std::string CompletionWriter::TakeChunk(size_t prompt, const v1::GenerateDelta& event) {
  if (event.has_prompt()) return "";
  const std::string tail = request_.include_usage         ? ",\"usage\":null"
                           : finished_ == choices_.size() ? Certificate()
                                                          : "";
  return ServerSentEvent(absl::StrCat(head_, TakeChoice(IndexOf(prompt, event)), "]", tail, "}"));
}

std::string CompletionWriter::LastChunks() const {
  std::string done = ServerSentEvent("[DONE]");
  if (!request_.include_usage) return done;
  return ServerSentEvent(absl::StrCat(head_, "],\"usage\":", Usage(), Certificate(), "}")) + done;
}

std::string CompletionWriter::TakeBody() {
  std::string body = head_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    absl::StrAppend(&body, i > 0 ? "," : "", TakeChoice(i));
  }
  return absl::StrCat(body, "],\"usage\":", Usage(), Certificate(), "}");
}

std::string CompletionWriter::TakeChoice(size_t index) {
  Choice& choice = choices_[index];
  const std::string logprobs = choice.logprobs.has_value() ? choice.logprobs->TakeJson() : "null";
  const std::string text =
      request_.chat ? TakeMessage(&choice) : JsonString(std::exchange(choice.text, {}));
  const char* name = !request_.chat ? "text" : request_.stream ? "delta" : "message";
  return absl::StrCat("{\"index\":", index, ",\"", name, "\":", text, ",\"logprobs\":", logprobs,
                      ",\"finish_reason\":", choice.finish, ",\"stop_reason\":", choice.stop, "}");
}

std::string CompletionWriter::TakeMessage(Choice* choice) {
  std::string calls;
  for (const ToolCallPart& call : choice->calls) {
    absl::StrAppend(&calls, calls.empty() ? ",\"tool_calls\":[" : ",", "{\"index\":", call.index);
    if (!call.id.empty()) {
      absl::StrAppend(&calls, ",\"id\":\"", call.id, "\",\"type\":\"function\"");
    }
    absl::StrAppend(&calls, ",\"function\":{",
                    call.id.empty() ? "" : absl::StrCat("\"name\":\"", call.name, "\","),
                    "\"arguments\":", JsonString(call.arguments), "}}");
  }
  if (!calls.empty()) calls += ']';
  choice->calls.clear();
  const char* role = std::exchange(choice->role_sent, true) ? "" : "\"role\":\"assistant\",";
  const std::string text = std::exchange(choice->text, {});
  return absl::StrCat("{", role,
                      "\"content\":", text.empty() && !calls.empty() ? "null" : JsonString(text),
                      calls, "}");
}

// A prompt counts once: its other choices find the pages that the first one has computed.
int64_t CompletionWriter::CachedTokens() const {
  int64_t tokens = 0;
  for (size_t i = 0; i < choices_.size(); i += static_cast<size_t>(request_.n)) {
    tokens += choices_[i].cached_tokens;
  }
  return tokens;
}

std::string CompletionWriter::Usage() const {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  for (const Prompt& prompt : prompts_) prompt_tokens += prompt.tokens;
  for (const Choice& choice : choices_) completion_tokens += choice.tokens;
  const int64_t cached_tokens = CachedTokens();
  const std::string cached =
      cached_tokens == 0
          ? ""
          : absl::StrCat(",\"prompt_tokens_details\":{\"cached_tokens\":", cached_tokens, "}");
  return absl::StrCat("{\"prompt_tokens\":", prompt_tokens,
                      ",\"completion_tokens\":", completion_tokens,
                      ",\"total_tokens\":", prompt_tokens + completion_tokens, cached, "}");
}

std::string CompletionWriter::Certificate() const {
  float mass = -std::numeric_limits<float>::infinity(), tolerance = mass;
  uint64_t held = 0, unpruned = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const v1::AcpStats& acp = choices_[i].acp;
    mass = std::max(mass, acp.max_log_evicted_mass());
    tolerance = std::max(tolerance, acp.log_tolerance());
    // A choice that was preempted has taken pages more than once: the peak and the tokens bound the
    // pages that it had at its end.
    const int64_t tokens =
        int64_t{prompts_[i / static_cast<size_t>(request_.n)].tokens} + int64_t{choices_[i].tokens};
    const auto all =
        std::min(acp.pages_allocated(),
                 static_cast<uint64_t>(PagesFor(tokens) * context_.limits.lists_per_slot));
    held += std::min({all, acp.peak_pages(), acp.pages_allocated() - acp.pages_evicted()});
    unpruned += all;
  }
  const auto page_bytes = static_cast<uint64_t>(context_.limits.page_bytes);
  return absl::StrCat(
      ",\"fox\":{\"max_log_evicted_mass\":", JsonBound(mass),
      ",\"log_tolerance\":", JsonNumber(tolerance), ",\"kv_bytes\":", held * page_bytes,
      ",\"kv_bytes_unpruned\":", unpruned * page_bytes, ",\"cached_tokens\":", CachedTokens(),
      relaxed_.empty() ? "" : absl::StrCat(",\"relaxed\":[", absl::StrJoin(relaxed_, ","), "]"),
      "}");
}

size_t CompletionWriter::IndexOf(size_t prompt, const v1::GenerateDelta& event) const {
  const uint32_t own = event.has_delta() ? event.delta().index() : event.finish().index();
  const size_t index = prompt * static_cast<size_t>(request_.n) + own;
  FOX_CHECK(index < choices_.size());
  return index;
}

std::string WindowsEvent(const v1::Windows& windows, size_t choice) {
  const v1::AcpStats& acp = windows.acp();
  return absl::StrCat(
      "data: {\"object\":\"fox.windows\",\"index\":", choice, ",\"tokens\":", windows.tokens(),
      ",\"layers\":", windows.layers(), ",\"kv_heads\":", windows.kv_heads(),
      ",\"page_size\":", windows.page_size(), ",\"page_bytes\":", windows.page_bytes(),
      ",\"first_page\":[", absl::StrJoin(windows.first_page(), ","),
      "],\"acp\":{\"blocks_total\":", acp.blocks_total(),
      ",\"blocks_pruned\":", acp.blocks_pruned(), ",\"pages_allocated\":", acp.pages_allocated(),
      ",\"pages_evicted\":", acp.pages_evicted(), ",\"peak_pages\":", acp.peak_pages(),
      ",\"max_log_evicted_mass\":", JsonBound(acp.max_log_evicted_mass()),
      ",\"log_tolerance\":", JsonNumber(acp.log_tolerance()), "}}\n\n");
}

CompletionFormat::CompletionFormat(const ConversionContext& context, std::string fingerprint,
                                   bool chat, HttpRequest* sent, HttpAnswer* head)
    : context_(context),
      fingerprint_(std::move(fingerprint)),
      chat_(chat),
      sent_id_(sent->Header("x-request-id")),
      head_(head),
      body_(std::move(sent->body)) {}

absl::StatusOr<CallOutline> CompletionFormat::ParseMessage() {
  const auto bytes = static_cast<int64_t>(body_.size());
  absl::StatusOr<CompletionRequest> request =
      ParseCompletion(std::exchange(body_, {}), context_, chat_);
  if (!request.ok()) return request.status();
  request_ = *std::move(request);
  absl::StatusOr<std::string> id = CheckRequestId(sent_id_);
  if (!id.ok()) return id.status();
  id_ = *std::move(id);
  writer_.emplace(request_, context_, fingerprint_,
                  absl::StrCat(chat_ ? "chatcmpl-" : "cmpl-", id_), std::time(nullptr));
  head_->headers = {{"X-Request-Id", id_}};
  if (request_.stream) {
    head_->content_type = "text/event-stream";
    head_->headers.emplace_back("Cache-Control", "no-cache");
  }
  CallOutline outline;
  outline.stream = request_.stream;
  for (const v1::GenerateRequest& prompt : request_.prompts) {
    outline.prompt_bytes.push_back(
        outline.prompt_bytes.empty() ? bytes : static_cast<int64_t>(prompt.ByteSizeLong()));
  }
  return outline;
}

absl::StatusOr<GenerationSpec> CompletionFormat::ConvertPrompt(size_t prompt) {
  absl::StatusOr<GenerationSpec> spec = Convert(request_, prompt, context_);
  if (!spec.ok()) return spec.status();
  spec->request_id = request_.prompts.size() == 1 ? id_ : absl::StrCat(id_, "-", prompt);
  return spec;
}

void CompletionFormat::AddEvent(CallEvent event) {
  FOX_CHECK(writer_.has_value());
  if (request_.stream && event.tokens > 0) tokens_.emplace_back(event.sequence, event.tokens);
  if (event.delta.has_windows()) {
    const v1::Windows& windows = event.delta.windows();
    const size_t choice = event.prompt * static_cast<size_t>(request_.n) + windows.index();
    std::string& newest = windows_[choice];
    held_bytes_ -= static_cast<int64_t>(newest.size());
    newest = WindowsEvent(windows, choice);
    held_bytes_ += static_cast<int64_t>(newest.size());
    return;
  }
  const int64_t grown = writer_->AddEvent(event.prompt, event.delta);
  if (!request_.stream || event.delta.has_prompt()) {
    held_bytes_ += grown;
    return;
  }
  const std::string chunk = writer_->TakeChunk(event.prompt, event.delta);
  held_bytes_ += static_cast<int64_t>(chunk.size());
  chunks_ += chunk;
}

Format::Output CompletionFormat::TakeOutput(bool last) {
  FOX_CHECK(writer_.has_value());
  if (!request_.stream) {
    FOX_CHECK(last);
    held_bytes_ = 0;
    return {writer_->TakeBody(), {}};
  }
  Output output;
  for (const auto& [choice, event] : windows_) output.bytes += event;
  windows_.clear();
  output.bytes += std::exchange(chunks_, {});  // the end of the last choice comes last
  held_bytes_ -= static_cast<int64_t>(output.bytes.size());
  FOX_CHECK(held_bytes_ >= 0);
  if (std::exchange(keep_alive_, false) && output.bytes.empty()) output.bytes = ": waiting\n\n";
  if (last) output.bytes += writer_->LastChunks();
  output.tokens = std::exchange(tokens_, {});
  return output;
}

void CompletionFormat::DropContents() {
  body_ = {};
  chunks_ = {};
  windows_.clear();
  keep_alive_ = false;
  writer_.reset();
  held_bytes_ = 0;
}

std::string CompletionFormat::EncodeFailure(const absl::Status& status,
                                            bool stream_has_begun) const {
  if (!stream_has_begun) return ErrorBody(status);
  return ServerSentEvent(ErrorBody(status)) + ServerSentEvent("[DONE]");
}

}  // namespace fox
