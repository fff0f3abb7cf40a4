// GrpcTransport: the gRPC end of a call of any kind: its writes, watched for readers that stall,
// and its one end. Unary methods are served by it, too: on the wire one is a stream of one message.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/calls/call.h"
#include "server/calls/limits/stall_monitor.h"
#include "server/calls/transport.h"
#include "server/rpc/wire.h"

namespace fox {

// Ends the call for its reader, however late it is called.
StallMonitor::OnStall EndOf(grpc_call* call);

// Owns itself until the library is done with the call: its answer was taken, its reader stalled or
// its client went away. A handler makes one, lets it answer, and gives it to the library.
class GrpcTransport final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public Transport {
 public:
  // `monitor`: of its writes. `client`: CallInfo's.
  GrpcTransport(grpc::CallbackServerContext* context, StallMonitor& monitor, uint64_t client);

  // In the handler, one of these. StartCall: the call answers when it can. AnswerNow: with
  // `message` if `status` is Ok; ResourceExhausted instead if the call's share does not hold it.
  void StartCall(ServerCore& core, CallInfo info, Call::Work work, std::unique_ptr<Format> format,
                 int64_t bytes);
  void AnswerNow(ServerCore& core, CallInfo info, absl::Status status, std::string message);

  void Write(std::string bytes) override;
  void EndAnswer(const absl::Status& status, std::string bytes, int64_t retry_after_ms) override;
  void AbandonReader(const absl::Status& status) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // The reason, in OnCancel or after a write that failed.
  absl::Status WhyCancelled() const;

  grpc::CallbackServerContext* const context_;
  std::optional<StallMonitor::Watch> writes_;  // until OnDone
  grpc::ByteBuffer bytes_;                     // of the write in flight
  bool begun_ = false;                         // a stream
  std::shared_ptr<Call> call_;                 // until OnDone; null: AnswerNow
  CallBudget::Share share_;                    // of AnswerNow
  std::shared_ptr<GrpcTransport> self_{this};  // until OnDone; a call may hold it for longer
};

}  // namespace fox
