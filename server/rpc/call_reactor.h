// CallReactor: the gRPC end of a call of any kind: what it holds of the budget, its writes watched,
// its one end. Unary methods are served by it, too: on the wire one is a stream of one message.
// Read generation_reactor.h next.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "server/calls/call_info.h"
#include "server/calls/stall_monitor.h"
#include "server/rpc/wire.h"

namespace fox {

// Ends the call for its reader, however late it is called.
StallMonitor::OnStall EndOf(grpc_call* call);

// Owns itself until the library is done with the call: its answer was taken, its reader stalled or
// its client went away. Then the call's share is given back, though others still hold the reactor.
class CallReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  CallReactor(ServerCore& core, grpc::CallbackServerContext* context, CallInfo info)
      : CallReactor(core, context, std::move(info), core.stalls()) {}
  // `monitor`: of its writes.
  CallReactor(ServerCore& core, grpc::CallbackServerContext* context, CallInfo info,
              StallMonitor& monitor);

  // For work that may outlive the call. In the handler only.
  std::shared_ptr<CallReactor> self() const { return self_; }
  // Keeps a message for work that comes later; none any more once the call was answered.
  void KeepRequest(const grpc::ByteBuffer* request);
  std::optional<grpc::ByteBuffer> TakeRequest();

  // Ends the call: `message` when the status is Ok. Only the first answer counts; `this` may be
  // gone afterwards. ResourceExhausted instead where the budget does not hold the answer.
  void Answer(absl::Status status, const google::protobuf::Message* message = nullptr);

  void OnCancel() override { Answer(WhyCancelled()); }
  void OnDone() override;

 protected:
  // True for the first caller: only it answers the call then.
  bool Claim();
  // In OnCancel.
  absl::Status WhyCancelled() const;
  // Begins the last write: of `message` and Ok, or (null) of the status alone. Once.
  void End(const absl::Status& status, const grpc::ByteBuffer* message);

  ServerCore& core_;
  grpc::CallbackServerContext* const context_;
  CallInfo info_;
  std::optional<StallMonitor::Watch> writes_;  // until OnDone
  grpc::ByteBuffer bytes_;                     // of the write in flight

 private:
  std::shared_ptr<CallReactor> self_{this};
  Mutex answer_mutex_;
  grpc::ByteBuffer request_ ABSL_GUARDED_BY(answer_mutex_);
  bool answered_ ABSL_GUARDED_BY(answer_mutex_) = false;
};

}  // namespace fox
