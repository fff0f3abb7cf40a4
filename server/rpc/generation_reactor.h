// GenerationReactor: the gRPC end of a call that has one Generation. A slow reader gets fewer,
// larger deltas. A cancelled call cancels its sequences at once.
#pragma once

#include <utility>
#include <vector>

#include "server/calls/generation.h"
#include "server/calls/reply_queue.h"
#include "server/rpc/call_reactor.h"

namespace fox {

// How a method reads and answers. Used by any thread.
class GenerationMethod {
 public:
  using Events = std::vector<v1::GenerateDelta>;
  GenerationMethod(const char* method, bool streams) : name(method), stream(streams) {}
  virtual ~GenerationMethod() = default;

  // On the admission pool. Takes the bytes.
  virtual absl::StatusOr<GenerationSpec> Convert(grpc::ByteBuffer* bytes,
                                                 const ConversionContext& context) const = 0;
  // Makes a message: of one event in a stream, else of all events, at the end, where the deltas of
  // each sequence have become one.
  virtual void Encode(Events events, grpc::ByteBuffer* out) const = 0;

  const char* const name;  // as the .proto files call it
  const bool stream;
};

class GenerationReactor final : public CallReactor, private ReplyQueue {
 public:
  // A call from its arrival on, admitted or refused. Returns the reactor for the library.
  static CallReactor* Start(ServerCore& core, const GenerationMethod& method,
                            grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { Close(WhyCancelled()); }

 private:
  GenerationReactor(ServerCore& core, const GenerationMethod& method,
                    grpc::CallbackServerContext* context, CallInfo info)
      : CallReactor(core, context, std::move(info)), ReplyQueue(core.engine), method_(method) {}

  struct Event {
    v1::GenerateDelta message;
    RequestId sequence = 0;
    int64_t tokens = 0;
    int64_t bytes = 0;  // kept
  };
  int64_t Keep(size_t prompt, v1::GenerateDelta event, RequestId sequence, int64_t tokens) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool empty() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return pending_.empty(); }
  Taken Take() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { pending_.clear(); }
  void Write() override;
  void End(const absl::Status& failed) override;
  void Abandon(const absl::Status& status) override;

  const GenerationMethod& method_;
  std::vector<Event> pending_ ABSL_GUARDED_BY(mutex_);  // at most one delta a sequence
};

}  // namespace fox
