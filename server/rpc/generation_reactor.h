// GenerationReactor: the gRPC end of a call that has a Generation. One write is in flight at a
// time; tokens are acknowledged to the engine when their write is done, so a reader that stops
// reading pauses its own sequence and nothing else. A cancelled call cancels its sequences at once.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "server/calls/generation.h"
#include "server/rpc/call_reactor.h"

namespace fox {

class GenerationReactor final : public CallReactor, public GenerationConsumer {
 public:
  using Events = std::vector<v1::GenerateDelta>;
  enum class Kind { kUnary, kStream };
  // How a method reads and answers. All but `convert` run while the reactor is alive.
  struct Method {
    const char* name;
    Kind kind;
    // Runs on the admission pool, and takes the bytes.
    std::function<absl::StatusOr<GenerationSpec>(grpc::ByteBuffer* bytes,
                                                 const ConversionContext& context)>
        convert;
    // Makes a message: of one event in a stream, else of all events, at the end, where the deltas
    // of each sequence have become one. False: nothing is sent, and what it held stays held.
    std::function<bool(Events events, grpc::ByteBuffer* out)> encode;
    // What the client is told at the end; none: the status itself.
    std::function<absl::Status(const absl::Status& status)> end = nullptr;
  };

  // A call from its arrival on, admitted or refused. Returns the reactor for the library.
  static CallReactor* Start(ServerCore& core, Method method, grpc::CallbackServerContext* context,
                            const grpc::ByteBuffer* request);

  absl::Status Deliver(v1::GenerateDelta event, RequestId sequence, int64_t tokens) override;
  void Done(const absl::Status& status) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;

 private:
  GenerationReactor(ServerCore& core, Method method, grpc::CallbackServerContext* context,
                    CallInfo info)
      : CallReactor(core, context, std::move(info)), method_(std::move(method)) {}

  struct Event {
    v1::GenerateDelta message;
    RequestId sequence = 0;
    int64_t tokens = 0;
    int64_t bytes = 0;  // held of the budget
  };
  // What to tell the library: chosen under the lock and done without it. Null: nothing now. After
  // the last one `this` may be gone.
  using Action = std::function<void()>;
  Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Perform(const Action& action) {
    if (action) action();
  }
  // Makes bytes_ of the first event, or of all of them. False: nothing to send.
  bool Encode() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing more is written but the status.
  void DropPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Method method_;
  // The base's mutex is also for the share's Hold.
  std::weak_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  std::vector<Event> pending_ ABSL_GUARDED_BY(mutex_);  // at most one delta a sequence
  Event writing_ ABSL_GUARDED_BY(mutex_);               // without its message
  bool write_in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the client reads no more: events are dropped
  bool done_ ABSL_GUARDED_BY(mutex_) = false;

  absl::Status status_;  // written by Done, read by the last action after it
};

}  // namespace fox
