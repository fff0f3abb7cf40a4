// GenerationReactor: see generation_reactor.h.
#include "server/rpc/generation_reactor.h"

#include <algorithm>

#include "grpc/grpc.h"

namespace fox {
namespace {

// The client's message until its turn.
class MessageSource final : public GenerationSource {
 public:
  MessageSource(const GenerationMethod& method, const grpc::ByteBuffer* request,
                const ConversionContext& context)
      : method_(method), bytes_(TakeBytes(request)), context_(context) {}
  absl::StatusOr<GenerationSpec> Convert() override { return method_.Convert(&bytes_, context_); }

 private:
  const GenerationMethod& method_;
  grpc::ByteBuffer bytes_;
  const ConversionContext& context_;
};

// What a delivered event takes in memory.
int64_t HeldBytes(const v1::GenerateDelta& event) {
  return 4 * static_cast<int64_t>(event.ByteSizeLong());  // log-probabilities: 40 bytes for 10
}

// Whether an event can join one of the same sequence that waits: of windows, the newest count.
bool Joins(const v1::GenerateDelta& next, const v1::GenerateDelta& last) {
  return (next.has_delta() && last.has_delta()) || (next.has_windows() && last.has_windows());
}

void Append(const v1::TokenDelta& next, v1::TokenDelta* last) {
  last->mutable_text()->append(next.text());
  last->mutable_token_ids()->MergeFrom(next.token_ids());
  last->mutable_logprobs()->MergeFrom(next.logprobs());
}

}  // namespace

CallReactor* GenerationReactor::Start(ServerCore& core, const GenerationMethod& method,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request) {
  CallInfo info = DescribeCall(method.name, *context, core);
  const absl::Status admitted = core.Admit(&info, static_cast<int64_t>(request->Length()));
  auto source = std::make_unique<MessageSource>(method, request, core.context);
  auto* reactor = new GenerationReactor(core, method, context, std::move(info));
  reactor->Expect(admitted.ok() ? 1 : 0, method.stream, &reactor->info_.share);
  if (admitted.ok()) {
    // It may end before this returns, but OnCancel comes after the handler.
    std::shared_ptr<GenerationConsumer> consumer(reactor->self(), reactor);
    reactor->Attach(
        Generation::Start(core, reactor->info_, std::move(source), std::move(consumer)));
  } else {
    reactor->Close(admitted);
  }
  return reactor;
}

void GenerationReactor::OnWriteDone(bool ok) {
  writes_->End();
  if (!ok) Close(WhyCancelled());
  Written();
}

int64_t GenerationReactor::Keep(size_t, v1::GenerateDelta event, RequestId sequence,
                                int64_t tokens) {
  const int64_t bytes = HeldBytes(event);
  const auto same = std::find_if(pending_.rbegin(), pending_.rend(), [&](const Event& last) {
    return last.sequence == sequence && Joins(event, last.message);
  });
  if (same == pending_.rend()) {
    pending_.push_back({std::move(event), sequence, tokens, bytes});
    return bytes;
  }
  if (event.has_windows()) {
    same->message.mutable_windows()->Swap(event.mutable_windows());
    return bytes - std::exchange(same->bytes, bytes);
  }
  Append(event.delta(), same->message.mutable_delta());
  same->tokens += tokens;
  same->bytes += bytes;
  return bytes;
}

ReplyQueue::Taken GenerationReactor::Take() {
  Taken taken;
  bytes_.Clear();
  if (pending_.empty()) return taken;
  const auto end = method_.stream ? pending_.begin() + 1 : pending_.end();
  GenerationMethod::Events events;
  for (auto event = pending_.begin(); event != end; ++event) {
    taken.kept += event->bytes;
    if (event->tokens > 0) taken.tokens.emplace_back(event->sequence, event->tokens);
    events.push_back(std::move(event->message));
  }
  pending_.erase(pending_.begin(), end);
  method_.Encode(std::move(events), &bytes_);
  taken.bytes = static_cast<int64_t>(bytes_.Length());
  return taken;
}

void GenerationReactor::Write() {
  writes_->Begin();
  StartWrite(&bytes_);
}

void GenerationReactor::Abandon(const absl::Status& status) {
  const grpc::Status out = ToGrpc(status);
  grpc_call_cancel_with_status(context_->c_call(), static_cast<grpc_status_code>(out.error_code()),
                               out.error_message().c_str(), nullptr);
}

void GenerationReactor::End(const absl::Status& failed) {
  CallReactor::End(failed, failed.ok() && bytes_.Valid() ? &bytes_ : nullptr);
}

}  // namespace fox
