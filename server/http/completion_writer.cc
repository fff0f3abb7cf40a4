// CompletionWriter: see completion_writer.h.
#include "server/http/completion_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/http/http_error.h"

namespace fox {
namespace {

std::string Head(const std::string& id, int64_t created, const std::string& model) {
  return absl::StrCat("{\"id\":", JsonString(id),
                      ",\"object\":\"text_completion\",\"created\":", created,
                      ",\"model\":", JsonString(model), ",\"choices\":[");
}

const char* ReasonOf(v1::FinishReason reason) {
  if (reason == v1::LENGTH) return "\"length\"";
  return reason == v1::ABORT ? "\"abort\"" : "\"stop\"";
}

// What ended a text beside the model's own end: a string or an id.
std::string StopOf(const v1::Finish& finish) {
  if (finish.has_stop_str()) return JsonString(finish.stop_str());
  return finish.has_stop_token_id() ? absl::StrCat(finish.stop_token_id()) : "null";
}

std::string ServerSentEvent(const std::string& data) {
  return absl::StrCat("data: ", data, "\n\n");
}

}  // namespace

CompletionWriter::CompletionWriter(const CompletionRequest& request,
                                   const ConversionContext& context, const std::string& id,
                                   int64_t created)
    : request_(request),
      context_(context),
      skip_special_(!request.settings.output().has_skip_special_tokens() ||
                    request.settings.output().skip_special_tokens()),
      head_(Head(id, created, context.served_model_name)),
      prompts_(request.prompts.size()),
      choices_(request.prompts.size() * static_cast<size_t>(request.n)) {}

int64_t CompletionWriter::Add(size_t prompt, const v1::GenerateDelta& event) {
  const auto bytes_of = [](const auto& part) {
    return static_cast<int64_t>(part.text.size()) +
           (part.logprobs.has_value() ? part.logprobs->bytes() : 0);
  };
  if (event.has_prompt()) {
    const int64_t before = bytes_of(prompts_[prompt]);
    AddPrompt(event.prompt(), &prompts_[prompt]);
    return bytes_of(prompts_[prompt]) - before;
  }
  Choice& choice = choices_[IndexOf(prompt, event)];
  const int64_t before = bytes_of(choice);
  if (!choice.begun) Begin(prompts_[prompt], &choice);
  if (event.has_delta()) {
    choice.text += event.delta().text();
    if (choice.logprobs.has_value()) {
      for (const v1::TokenLogprobs& token : event.delta().logprobs()) choice.logprobs->Add(token);
    }
  } else {
    choice.finish = ReasonOf(event.finish().reason());
    choice.stop = StopOf(event.finish());
    choice.tokens = event.finish().usage().completion_tokens();
    choice.cached_tokens = event.finish().usage().cached_tokens();
  }
  return bytes_of(choice) - before;
}

void CompletionWriter::AddPrompt(const v1::PromptInfo& info, Prompt* prompt) {
  if (!info.request_id().empty()) prompt->tokens = info.prompt_tokens();
  if (!request_.echo) return;
  prompt->text += info.text();
  if (request_.logprobs < 0) return;
  if (!prompt->logprobs.has_value()) {
    prompt->logprobs.emplace(*context_.tokenizer, skip_special_, /*at_text_start=*/true);
    if (!info.token_ids().empty()) {
      prompt->logprobs->AddFirst(static_cast<int32_t>(info.token_ids(0)));
    }
  }
  for (const v1::TokenLogprobs& token : info.prompt_logprobs()) prompt->logprobs->Add(token);
}

void CompletionWriter::Begin(const Prompt& prompt, Choice* choice) {
  choice->begun = true;
  choice->text = prompt.text;
  if (request_.logprobs < 0) return;
  choice->logprobs.emplace(*context_.tokenizer, skip_special_, /*at_text_start=*/false);
  if (!prompt.logprobs.has_value()) return;
  choice->logprobs->Follow(*prompt.logprobs, CountCharacters(prompt.text));
}

std::string CompletionWriter::TakeChunk(size_t prompt, const v1::GenerateDelta& event) {
  if (event.has_prompt()) return "";
  const char* const usage = request_.include_usage ? ",\"usage\":null" : "";
  return ServerSentEvent(absl::StrCat(head_, TakeChoice(IndexOf(prompt, event)), "]", usage, "}"));
}

std::string CompletionWriter::LastChunks() const {
  std::string done = ServerSentEvent("[DONE]");
  if (!request_.include_usage) return done;
  return ServerSentEvent(absl::StrCat(head_, "],\"usage\":", Usage(), "}")) + done;
}

std::string CompletionWriter::TakeBody() {
  std::string body = head_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    absl::StrAppend(&body, i > 0 ? "," : "", TakeChoice(i));
  }
  return absl::StrCat(body, "],\"usage\":", Usage(), "}");
}

std::string CompletionWriter::TakeChoice(size_t index) {
  Choice& choice = choices_[index];
  const std::string logprobs = choice.logprobs.has_value() ? choice.logprobs->Take() : "null";
  return absl::StrCat("{\"index\":", index,
                      ",\"text\":", JsonString(std::exchange(choice.text, {})),
                      ",\"logprobs\":", logprobs, ",\"finish_reason\":", choice.finish,
                      ",\"stop_reason\":", choice.stop, "}");
}

std::string CompletionWriter::Usage() const {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  for (const Prompt& prompt : prompts_) prompt_tokens += prompt.tokens;
  for (size_t i = 0; i < choices_.size(); ++i) {
    completion_tokens += choices_[i].tokens;
    // A prompt counts once: the other choices find what the first one has computed.
    if (i % static_cast<size_t>(request_.n) == 0) cached_tokens += choices_[i].cached_tokens;
  }
  const std::string cached =
      cached_tokens == 0
          ? ""
          : absl::StrCat(",\"prompt_tokens_details\":{\"cached_tokens\":", cached_tokens, "}");
  return absl::StrCat("{\"prompt_tokens\":", prompt_tokens,
                      ",\"completion_tokens\":", completion_tokens,
                      ",\"total_tokens\":", prompt_tokens + completion_tokens, cached, "}");
}

size_t CompletionWriter::IndexOf(size_t prompt, const v1::GenerateDelta& event) const {
  const uint32_t own = event.has_delta() ? event.delta().index() : event.finish().index();
  return prompt * static_cast<size_t>(request_.n) + own;
}

}  // namespace fox
