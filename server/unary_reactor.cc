// UnaryReactor: see unary_reactor.h.
#include "server/unary_reactor.h"

#include <utility>

namespace fox {

UnaryReactor::UnaryReactor(ServerCore& core, grpc::CallbackServerContext* context,
                           grpc::ByteBuffer* response)
    : core_(core), context_(context), response_(response) {}

void UnaryReactor::Started(absl::StatusOr<std::shared_ptr<Generation>> generation) {
  if (!generation.ok()) return Done(generation.status());
  bool cancelled = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!done_) generation_ = *generation;  // it may have ended by now
    cancelled = cancelled_;
  }
  if (cancelled) (*generation)->Cancel(absl::CancelledError("the client went away"));
}

void UnaryReactor::Deliver(v1::GenerateDelta event, RequestId, int64_t) { Join(std::move(event)); }

void UnaryReactor::Done(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    generation_ = nullptr;
  }
  if (status.ok()) SerializeMessage(Response(), response_);
  Finish(EndStatus(status, core_, context_));  // `this` may be gone after it
}

void UnaryReactor::OnCancel() {
  std::shared_ptr<Generation> generation;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    generation = generation_;
  }
  if (generation != nullptr) generation->Cancel(absl::CancelledError("the client went away"));
}

void GenerateReactor::Join(v1::GenerateDelta event) {
  if (event.has_prompt()) {
    joined_.mutable_prompt()->MergeFrom(event.prompt());
    return;
  }
  const uint32_t index = event.has_delta() ? event.delta().index() : event.finish().index();
  while (joined_.completions_size() <= static_cast<int>(index)) {
    const int next = joined_.completions_size();
    joined_.add_completions()->set_index(static_cast<uint32_t>(next));
  }
  v1::Completion* completion = joined_.mutable_completions(static_cast<int>(index));
  if (event.has_finish()) {
    completion->mutable_finish()->Swap(event.mutable_finish());
    return;
  }
  completion->mutable_text()->append(event.delta().text());
  completion->mutable_token_ids()->MergeFrom(event.delta().token_ids());
  completion->mutable_logprobs()->MergeFrom(event.delta().logprobs());
}

void ScoreReactor::Join(v1::GenerateDelta event) {
  if (event.has_finish()) {
    v1::Finish* finish = event.mutable_finish();
    joined_.mutable_usage()->Swap(finish->mutable_usage());
    if (finish->has_perf()) joined_.mutable_perf()->Swap(finish->mutable_perf());
    if (finish->has_acp()) joined_.mutable_acp()->Swap(finish->mutable_acp());
    return;
  }
  const v1::PromptInfo& prompt = event.prompt();
  if (!prompt.request_id().empty()) {
    joined_.set_request_id(prompt.request_id());
    joined_.mutable_token_ids()->MergeFrom(prompt.token_ids());
  }
  for (const v1::TokenLogprobs& position : prompt.prompt_logprobs()) {
    joined_.set_total_logprob(joined_.total_logprob() +
                              static_cast<double>(position.token().logprob()));
    *joined_.add_logprobs() = position;
  }
}

}  // namespace fox
