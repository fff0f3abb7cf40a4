// GenerateService: the formats of Generate, GenerateStream and Score, and Abort. See services.h.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/calls/conversion/request_conversion.h"
#include "server/rpc/services.h"

namespace fox {
namespace {

constexpr int kMaxAbortIds = 1024;

// The memory that an event takes; log-probabilities: 40 bytes for 10 on the wire.
int64_t BytesInMemory(const v1::GenerateDelta& event) {
  return 4 * static_cast<int64_t>(event.ByteSizeLong());
}

// True if an event can join a waiting one of its sequence: deltas add up, windows are replaced.
bool JoinsEvent(const v1::GenerateDelta& next, const v1::GenerateDelta& last) {
  return (next.has_delta() && last.has_delta()) || (next.has_windows() && last.has_windows());
}

void AppendDelta(const v1::TokenDelta& next, v1::TokenDelta* last) {
  last->mutable_text()->append(next.text());
  last->mutable_token_ids()->MergeFrom(next.token_ids());
  last->mutable_logprobs()->MergeFrom(next.logprobs());
}

// The form of all three methods: one prompt, whose events wait as messages. A slow reader gets
// fewer, larger deltas.
template <class Request>
class FoxFormat : public Format {
 public:
  FoxFormat(const grpc::ByteBuffer& message, const ConversionContext& context)
      : message_(message), context_(context) {}

  absl::StatusOr<CallOutline> ParseMessage() final {
    return CallOutline{{static_cast<int64_t>(message_.Length())}, IsStream()};
  }
  absl::StatusOr<GenerationSpec> ConvertPrompt(size_t) final {
    Request request;
    const absl::Status status = ::fox::ParseMessage(message_, &request);
    message_.Clear();
    if (!status.ok()) return status;
    return ConvertRequest(request);
  }

  void AddEvent(CallEvent event) final {
    const int64_t bytes = BytesInMemory(event.delta);
    const auto waiting = std::find_if(events_.rbegin(), events_.rend(), [&](const Waiting& last) {
      return last.event.sequence == event.sequence && JoinsEvent(event.delta, last.event.delta);
    });
    held_bytes_ += bytes;
    if (waiting == events_.rend()) {
      events_.push_back({std::move(event), bytes});
    } else if (event.delta.has_windows()) {
      waiting->event.delta.mutable_windows()->Swap(event.delta.mutable_windows());
      held_bytes_ -= std::exchange(waiting->bytes, bytes);
    } else {
      AppendDelta(event.delta.delta(), waiting->event.delta.mutable_delta());
      waiting->event.tokens += event.tokens;
      waiting->bytes += bytes;
    }
  }
  bool HasOutput() const final { return !events_.empty(); }
  // A message of a stream is one event; of no stream, all.
  Output TakeOutput(bool) final {
    Output output;
    if (events_.empty()) return output;
    const auto end = IsStream() ? events_.begin() + 1 : events_.end();
    std::vector<v1::GenerateDelta> taken;
    for (auto waiting = events_.begin(); waiting != end; ++waiting) {
      held_bytes_ -= waiting->bytes;
      CallEvent& event = waiting->event;
      if (event.tokens > 0) output.tokens.emplace_back(event.sequence, event.tokens);
      taken.push_back(std::move(event.delta));
    }
    events_.erase(events_.begin(), end);
    FOX_CHECK(held_bytes_ >= 0);
    output.bytes = EncodeEvents(&taken);
    return output;
  }
  int64_t held_bytes() const final { return held_bytes_; }
  void DropContents() final {
    message_.Clear();
    events_.clear();
    held_bytes_ = 0;
  }
  std::string EncodeFailure(const absl::Status&, bool) const final { return ""; }

 protected:
  const ConversionContext& context() const { return context_; }

 private:
  virtual bool IsStream() const = 0;
  virtual absl::StatusOr<GenerationSpec> ConvertRequest(const Request& request) const = 0;
  // Makes a message of one event in a stream, else of all events, in which the deltas of each
  // sequence have become one.
  virtual std::string EncodeEvents(std::vector<v1::GenerateDelta>* events) const = 0;

  struct Waiting {
    CallEvent event;
    int64_t bytes = 0;
  };
  grpc::ByteBuffer message_;
  const ConversionContext& context_;
  std::vector<Waiting> events_;  // at most one delta a sequence
  int64_t held_bytes_ = 0;
};

template <bool kStream>
class GenerateFormat final : public FoxFormat<v1::GenerateRequest> {
 public:
  using FoxFormat::FoxFormat;

 private:
  bool IsStream() const override { return kStream; }
  absl::StatusOr<GenerationSpec> ConvertRequest(const v1::GenerateRequest& request) const override {
    return ConvertGenerate(request, kStream, context());
  }
  std::string EncodeEvents(std::vector<v1::GenerateDelta>* events) const override;
};

template <bool kStream>
std::string GenerateFormat<kStream>::EncodeEvents(std::vector<v1::GenerateDelta>* events) const {
  FOX_CHECK(!events->empty());
  if (kStream) return events->front().SerializeAsString();
  v1::GenerateResponse response;
  for (v1::GenerateDelta& event : *events) {
    if (event.has_prompt()) {
      if (!response.has_prompt()) response.mutable_prompt()->Swap(event.mutable_prompt());
      response.mutable_prompt()->MergeFrom(event.prompt());  // the first one's is empty now
      continue;
    }
    const uint32_t index = event.has_delta() ? event.delta().index() : event.finish().index();
    while (response.completions_size() <= static_cast<int>(index)) {
      const int next = response.completions_size();
      response.add_completions()->set_index(static_cast<uint32_t>(next));
    }
    v1::Completion* completion = response.mutable_completions(static_cast<int>(index));
    if (event.has_finish()) {
      completion->mutable_finish()->Swap(event.mutable_finish());
    } else {
      completion->mutable_text()->swap(*event.mutable_delta()->mutable_text());
      completion->mutable_token_ids()->Swap(event.mutable_delta()->mutable_token_ids());
      completion->mutable_logprobs()->Swap(event.mutable_delta()->mutable_logprobs());
    }
  }
  return response.SerializeAsString();
}

class ScoreFormat final : public FoxFormat<v1::ScoreRequest> {
 public:
  using FoxFormat::FoxFormat;

 private:
  bool IsStream() const override { return false; }
  absl::StatusOr<GenerationSpec> ConvertRequest(const v1::ScoreRequest& request) const override {
    return ConvertScore(request, context());
  }
  std::string EncodeEvents(std::vector<v1::GenerateDelta>* events) const override;
};

std::string ScoreFormat::EncodeEvents(std::vector<v1::GenerateDelta>* events) const {
  v1::ScoreResponse response;
  for (v1::GenerateDelta& event : *events) {
    if (event.has_finish()) {
      v1::Finish* finish = event.mutable_finish();
      response.mutable_usage()->Swap(finish->mutable_usage());
      if (finish->has_perf()) response.mutable_perf()->Swap(finish->mutable_perf());
      if (finish->has_acp()) response.mutable_acp()->Swap(finish->mutable_acp());
      continue;
    }
    v1::PromptInfo* prompt = event.mutable_prompt();
    if (!prompt->request_id().empty()) {
      response.set_request_id(prompt->request_id());
      response.mutable_token_ids()->Swap(prompt->mutable_token_ids());
    }
    for (const v1::TokenLogprobs& position : prompt->prompt_logprobs()) {
      response.set_total_logprob(response.total_logprob() +
                                 static_cast<double>(position.token().logprob()));
    }
    response.mutable_logprobs()->MergeFrom(prompt->prompt_logprobs());
  }
  return response.SerializeAsString();
}

}  // namespace

GenerateService::GenerateService(ServerCore& core) : RawService(core) {
  constexpr auto kGenerate = Call::Work::kGenerate;
  ServeCall("Generate", kGenerate, MakeFormat<GenerateFormat<false>>);
  ServeCall("GenerateStream", kGenerate, MakeFormat<GenerateFormat<true>>);
  ServeCall("Score", kGenerate, MakeFormat<ScoreFormat>);
  ServeShort<v1::AbortRequest, v1::AbortResponse>(
      "Abort",
      [&core](const v1::AbortRequest& request,
              const CallInfo& call) -> absl::StatusOr<v1::AbortResponse> {
        if (request.request_ids().empty() || request.request_ids_size() > kMaxAbortIds) {
          return absl::InvalidArgumentError("request_ids: 1 to 1024 ids");
        }
        v1::AbortResponse response;
        std::set<std::string> seen;  // an id that comes twice would be found twice
        for (const std::string& id : request.request_ids()) {
          if (seen.insert(id).second && AbortCalls(core, call, id)) response.add_aborted(id);
        }
        return response;
      });
}

}  // namespace fox
