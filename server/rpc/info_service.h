// InfoService: fox.v1.Info, read-only. Answers from constants and from a copy of the engine's
// counters; never waits for the engine.
#pragma once

#include "fox/v1/info.grpc.pb.h"
#include "server/rpc/wire.h"

namespace fox {

// What the methods answer; of constants and of a copy of the engine's counters.
v1::ServerInfo DescribeServer(const ServerCore& core);
v1::ModelInfo DescribeModel(const ServerCore& core);
v1::Load DescribeLoad(ServerCore& core);

using RawInfo =
    v1::Info::WithRawCallbackMethod_GetServerInfo<v1::Info::WithRawCallbackMethod_GetModelInfo<
        v1::Info::WithRawCallbackMethod_GetLoad<v1::Info::Service>>>;

class InfoService final : public RawInfo {
 public:
  // `core` must outlive the server this is registered with.
  explicit InfoService(ServerCore& core) : core_(core) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;

 private:
  ServerCore& core_;
};

}  // namespace fox
