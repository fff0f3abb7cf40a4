// CompletionWriter: events of fox.v1 become choices of OpenAI's completions and chat completions,
// as one answer or as server-sent events.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "server/http/openai/answer_reader.h"
#include "server/http/openai/completion_format.h"
#include "server/http/openai/completion_logprobs.h"
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
  std::string EncodeFailure(const absl::Status& status) const override {
    return ServerSentEvent(ErrorBody(status)) + ServerSentEvent("[DONE]");
  }
  void DropContents() override {
    prompts_.clear();
    choices_.clear();
  }

 private:
  struct Prompt {
    std::string text;  // empty unless it is echoed
    std::optional<CompletionLogprobs> logprobs;
    uint32_t tokens = 0;
    int32_t begun = 0;  // choices; behind the last one text and lists are empty
  };
  struct Choice {
    bool begun = false, role_sent = false;
    std::string text, thought;
    std::optional<AnswerReader> reader;  // of a chat
    std::vector<AnswerPart> calls;
    std::optional<CompletionLogprobs> logprobs;
    std::string finish = "null", stop = "null";  // JSON
    // Tokens of the answer: until the choice ends as many as ids have come, none if no ids were
    // asked for; then the engine's count.
    uint32_t tokens = 0, thought_tokens = 0;
    uint32_t cached_tokens = 0;  // of the prompt
    v1::AcpStats acp;
  };
  void AddPrompt(const v1::PromptInfo& info, size_t index);
  void Begin(Prompt* prompt, Choice* choice);
  // Returns the bytes that are not in the choice's text, but in its thought, its calls or the
  // reader.
  static int64_t AddText(const std::string& text, Choice* choice);
  static void AddParts(std::vector<AnswerPart> parts, Choice* choice);
  std::string TakeChoice(size_t index);
  std::string TakeMessage(Choice* choice) const;
  // CachedTokens and Usage count the tokens of `count` choices from `first` on.
  int64_t CachedTokens(size_t first, size_t count) const;
  std::string Usage(size_t first, size_t count) const;
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
  const int64_t before = bytes_of(choice), of_prompt = bytes_of(prompts_[prompt]);
  if (!choice.begun) Begin(&prompts_[prompt], &choice);
  if (event.has_delta()) {
    const auto tokens = static_cast<uint32_t>(event.delta().token_ids_size());
    choice.tokens += tokens;
    if (choice.reader.has_value() && choice.reader->in_thought()) choice.thought_tokens += tokens;
    beside = AddText(event.delta().text(), &choice);
    if (choice.logprobs.has_value()) {
      for (const v1::TokenLogprobs& token : event.delta().logprobs()) choice.logprobs->Add(token);
    }
  } else {
    choice.finish = ReasonOf(event.finish().reason());
    if (choice.reader.has_value()) {
      std::vector<AnswerPart> parts;
      choice.reader->EndText(event.finish().reason() != v1::STOP, &parts);
      AddParts(std::move(parts), &choice);
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
  const int64_t grown = bytes_of(prompts_[prompt]) - of_prompt;
  return request_.stream ? grown : grown + bytes_of(choice) - before + beside;
}

int64_t CompletionWriter::AddText(const std::string& text, Choice* choice) {
  const size_t before = choice->text.size();
  if (choice->reader.has_value()) {
    std::vector<AnswerPart> parts;
    choice->reader->Read(text, &parts);
    AddParts(std::move(parts), choice);
  } else {
    choice->text += text;
  }
  return static_cast<int64_t>(text.size()) - static_cast<int64_t>(choice->text.size() - before);
}

void CompletionWriter::AddParts(std::vector<AnswerPart> parts, Choice* choice) {
  for (AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kText) choice->text += part.text;
    if (part.kind == AnswerPart::Kind::kThought) choice->thought += part.text;
    if (part.kind != AnswerPart::Kind::kCall) continue;
    const bool joins = part.id.empty() && !choice->calls.empty();
    joins ? void(choice->calls.back().text += part.text) : choice->calls.push_back(std::move(part));
  }
}

void CompletionWriter::AddPrompt(const v1::PromptInfo& info, size_t index) {
  Prompt* const prompt = &prompts_[index];
  if (!info.request_id().empty()) prompt->tokens = info.prompt_tokens();
  if (index == 0) {
    relaxed_.assign(info.relaxed().begin(), info.relaxed().end());
  }
  if (!request_.echo) return;
  prompt->text += info.text();
  if (request_.logprobs < 0) return;
  if (!prompt->logprobs.has_value()) {
    const v1::GenerateRequest& sent = request_.prompts[index];
    const v1::GenerateRequest& settings = request_.settings;
    // A text that is echoed as it was sent has the names of special tokens that the client wrote,
    // but not the special tokens that the tokenizer added.
    const bool as_sent = EchoesSentText(sent, settings);
    const bool adds = !settings.has_add_special_tokens() || settings.add_special_tokens();
    prompt->logprobs.emplace(*context_.tokenizer, skip_special_ && !as_sent,
                             /*at_text_start=*/true);
    if (as_sent) {
      prompt->logprobs->FollowSentText(adds ? context_.tokenizer->info().prefix.size() : 0);
    }
    if (!info.token_ids().empty()) {
      const bool bos_was_added =
          sent.has_token_ids() && info.token_ids_size() > sent.token_ids().ids_size();
      const auto first = static_cast<int32_t>(info.token_ids(0));
      // A client that counts in its own ids finds its own ids.
      bos_was_added ? prompt->logprobs->SkipFirst(first) : prompt->logprobs->AddFirst(first);
    }
  }
  for (const v1::TokenLogprobs& token : info.prompt_logprobs()) prompt->logprobs->Add(token);
}

void CompletionWriter::Begin(Prompt* prompt, Choice* choice) {
  choice->begun = true;
  choice->text = prompt->text;
  if (request_.chat) {
    choice->reader.emplace(
        AnswerForm::Of(request_.settings, request_.prompts[0].messages(), *context_.chat));
  }
  if (request_.logprobs >= 0) {
    choice->logprobs.emplace(*context_.tokenizer, skip_special_, /*at_text_start=*/false,
                             request_.chat);
    if (prompt->logprobs.has_value()) {
      choice->logprobs->Follow(*prompt->logprobs, CountCharacters(prompt->text));
    }
  }
  if (++prompt->begun < request_.n) return;
  prompt->text = {};  // each choice has its copy, which goes with the choice's first chunk
  prompt->logprobs.reset();
}

std::string CompletionWriter::TakeChunk(size_t prompt, const v1::GenerateDelta& event) {
  if (event.has_prompt()) return "";
  const std::string tail = request_.continuous_usage
                               ? absl::StrCat(",\"usage\":", Usage(IndexOf(prompt, event), 1))
                           : request_.include_usage       ? ",\"usage\":null"
                           : finished_ == choices_.size() ? Certificate()
                                                          : "";
  return ServerSentEvent(absl::StrCat(head_, TakeChoice(IndexOf(prompt, event)), "]", tail, "}"));
}

std::string CompletionWriter::LastChunks() {
  std::string done = ServerSentEvent("[DONE]");
  if (!request_.include_usage) return done;
  return ServerSentEvent(
             absl::StrCat(head_, "],\"usage\":", Usage(0, choices_.size()), Certificate(), "}")) +
         done;
}

std::string CompletionWriter::TakeBody() {
  std::string body = head_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    absl::StrAppend(&body, i > 0 ? "," : "", TakeChoice(i));
  }
  return absl::StrCat(body, "],\"usage\":", Usage(0, choices_.size()), Certificate(), "}");
}

std::string CompletionWriter::TakeChoice(size_t index) {
  Choice& choice = choices_[index];
  const std::string logprobs =
      choice.logprobs.has_value() ? choice.logprobs->TakeJson(/*whole=*/!request_.stream) : "null";
  const std::string text =
      request_.chat ? TakeMessage(&choice) : JsonString(std::exchange(choice.text, {}));
  const char* name = !request_.chat ? "text" : request_.stream ? "delta" : "message";
  return absl::StrCat("{\"index\":", index, ",\"", name, "\":", text, ",\"logprobs\":", logprobs,
                      ",\"finish_reason\":", choice.finish, ",\"stop_reason\":", choice.stop, "}");
}

std::string CompletionWriter::TakeMessage(Choice* choice) const {
  std::string calls;
  for (const AnswerPart& call : choice->calls) {
    absl::StrAppend(&calls, calls.empty() ? ",\"tool_calls\":[" : ",", "{\"index\":", call.call);
    if (!call.id.empty()) {
      absl::StrAppend(&calls, ",\"id\":\"", call.id, "\",\"type\":\"function\"");
    }
    absl::StrAppend(&calls, ",\"function\":{",
                    call.id.empty() ? "" : absl::StrCat("\"name\":\"", call.name, "\","),
                    "\"arguments\":", JsonString(call.text), "}}");
  }
  if (!calls.empty()) calls += ']';
  choice->calls.clear();
  const char* role = std::exchange(choice->role_sent, true) ? "" : "\"role\":\"assistant\",";
  const std::string text = std::exchange(choice->text, {});
  std::string thought = std::exchange(choice->thought, {});
  const bool beside = !calls.empty() || (request_.stream && !thought.empty());
  if (!thought.empty()) thought = absl::StrCat(",\"reasoning_content\":", JsonString(thought));
  return absl::StrCat("{", role, "\"content\":", text.empty() && beside ? "null" : JsonString(text),
                      thought, calls, request_.stream ? "" : ",\"refusal\":null", "}");
}

// A prompt counts once: its other choices find the pages that the first one has computed.
int64_t CompletionWriter::CachedTokens(size_t first, size_t count) const {
  int64_t tokens = 0;
  for (size_t i = first; i < first + count; i += static_cast<size_t>(request_.n)) {
    tokens += choices_[i].cached_tokens;
  }
  return tokens;
}

std::string CompletionWriter::Usage(size_t first, size_t count) const {
  const auto n = static_cast<size_t>(request_.n);
  int64_t prompt_tokens = 0, completion_tokens = 0, thought_tokens = 0;
  for (size_t i = first; i < first + count; ++i) {
    if (i == first || i % n == 0) prompt_tokens += prompts_[i / n].tokens;
    completion_tokens += choices_[i].tokens;
    thought_tokens += choices_[i].thought_tokens;
  }
  const std::string thoughts =
      request_.chat && CountsThoughts(context_)
          ? absl::StrCat(",\"completion_tokens_details\":{\"reasoning_tokens\":", thought_tokens,
                         "}")
          : "";
  const int64_t cached_tokens = CachedTokens(first, count);
  const std::string cached =
      cached_tokens == 0
          ? ""
          : absl::StrCat(",\"prompt_tokens_details\":{\"cached_tokens\":", cached_tokens, "}");
  return absl::StrCat(
      "{\"prompt_tokens\":", prompt_tokens, ",\"completion_tokens\":", completion_tokens,
      ",\"total_tokens\":", prompt_tokens + completion_tokens, cached, thoughts, "}");
}

std::string CompletionWriter::Certificate() const {
  std::vector<EndedSequence> ended;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Prompt& prompt = prompts_[i / static_cast<size_t>(request_.n)];
    ended.push_back({int64_t{prompt.tokens} + int64_t{choices_[i].tokens}, choices_[i].acp});
  }
  return FoxObject(ended, CachedTokens(0, choices_.size()), relaxed_, context_);
}

size_t CompletionWriter::IndexOf(size_t prompt, const v1::GenerateDelta& event) const {
  const uint32_t own = event.has_delta() ? event.delta().index() : event.finish().index();
  const size_t index = prompt * static_cast<size_t>(request_.n) + own;
  FOX_CHECK(index < choices_.size());
  return index;
}

template <bool chat>
absl::StatusOr<CompletionRequest> Parse(const std::string& body, const ConversionContext& context) {
  return ParseCompletion(body, context, chat);
}

std::unique_ptr<AnswerWriter> MakeWriter(const CompletionRequest& request,
                                         const ConversionContext& context,
                                         const std::string& fingerprint, const std::string& id,
                                         int64_t created) {
  return std::make_unique<CompletionWriter>(request, context, fingerprint, id, created);
}

}  // namespace

const HttpApi kCompletionsApi = {"/v1/completions", "cmpl-",   Parse<false>,
                                 MakeWriter,        ErrorBody, ": waiting\n\n"};
const HttpApi kChatApi = {"/v1/chat/completions", "chatcmpl-", Parse<true>, MakeWriter, ErrorBody,
                          ": waiting\n\n"};

}  // namespace fox
