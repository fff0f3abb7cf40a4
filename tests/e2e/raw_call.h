// RawCall: one gRPC call of any method, unary or streaming, in bytes and without a thread of its
// own. RunCalls keeps many of them open.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace fox {

struct RawRequest {
  std::string method;  // "/package.Service/Method"
  std::string message;
  int deadline_ms = 60000;
};

// Both callbacks come from gRPC's threads, one at a time.
class RawCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using OnMessage = std::function<bool(const std::string& message)>;  // false: cancel the call
  using Metadata = std::multimap<std::string, std::string>;
  using OnEnd = std::function<void(const grpc::Status& status, const Metadata& trailing)>;

  // `on_message` may be null. The call's context, which cancels it at any time: a channel has to
  // end on a thread of ours, so what is destroyed after `on_end` holds the context until then.
  static std::shared_ptr<grpc::ClientContext> Start(grpc::GenericStub& stub,
                                                    const RawRequest& request, OnMessage on_message,
                                                    OnEnd on_end);

 private:
  RawCall(OnMessage on_message, OnEnd on_end)
      : on_message_(std::move(on_message)), on_end_(std::move(on_end)) {}
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  std::shared_ptr<grpc::ClientContext> context_ = std::make_shared<grpc::ClientContext>();
  grpc::ByteBuffer request_, response_;
  const OnMessage on_message_;
  OnEnd on_end_;
};

// A channel with a connection of its own to `port` on loopback.
std::shared_ptr<grpc::Channel> ConnectTo(int port);

// One message each way, unary or over a stream, with any service; `response` null: of no interest.
grpc::Status Exchange(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                      const std::string& request, std::string* response = nullptr);

// Calls `start` for call 0, 1, ... so that `open` calls are open, until it returns false, and waits
// for their ends. `start` begins a call and has `done` called when it has ended, from any thread
// and not from within `start`; it is called by one thread at a time or more.
void RunCalls(int open,
              const std::function<bool(int64_t index, std::function<void()> done)>& start);

}  // namespace fox
