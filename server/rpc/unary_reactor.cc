// AnswerReactor and UnaryReactor: see unary_reactor.h.
#include "server/rpc/unary_reactor.h"

#include <utility>

namespace fox {

void AnswerReactor::Answer(absl::Status status, const google::protobuf::Message& message) {
  if (status.ok()) {
    SerializeMessage(message, response_);
    if (!call_.Hold(static_cast<int64_t>(response_->Length()))) status = AnswersUnread();
  }
  if (!status.ok()) response_->Clear();
  call_.writes().Begin();
  Finish(call_.End(status));
}

void GenerateReactor::Merge(v1::GenerateDelta event) {
  if (event.has_prompt()) {
    merged_.mutable_prompt()->MergeFrom(event.prompt());
    return;
  }
  const uint32_t index = event.has_delta() ? event.delta().index() : event.finish().index();
  while (merged_.completions_size() <= static_cast<int>(index)) {
    const int next = merged_.completions_size();
    merged_.add_completions()->set_index(static_cast<uint32_t>(next));
  }
  v1::Completion* completion = merged_.mutable_completions(static_cast<int>(index));
  if (event.has_finish()) {
    completion->mutable_finish()->Swap(event.mutable_finish());
    return;
  }
  completion->mutable_text()->append(event.delta().text());
  completion->mutable_token_ids()->MergeFrom(event.delta().token_ids());
  completion->mutable_logprobs()->MergeFrom(event.delta().logprobs());
}

void ScoreReactor::Merge(v1::GenerateDelta event) {
  if (event.has_finish()) {
    v1::Finish* finish = event.mutable_finish();
    merged_.mutable_usage()->Swap(finish->mutable_usage());
    if (finish->has_perf()) merged_.mutable_perf()->Swap(finish->mutable_perf());
    if (finish->has_acp()) merged_.mutable_acp()->Swap(finish->mutable_acp());
    return;
  }
  const v1::PromptInfo& prompt = event.prompt();
  if (!prompt.request_id().empty()) {
    merged_.set_request_id(prompt.request_id());
    merged_.mutable_token_ids()->MergeFrom(prompt.token_ids());
  }
  for (const v1::TokenLogprobs& position : prompt.prompt_logprobs()) {
    merged_.set_total_logprob(merged_.total_logprob() +
                              static_cast<double>(position.token().logprob()));
    *merged_.add_logprobs() = position;
  }
}

}  // namespace fox
