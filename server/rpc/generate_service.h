// GenerateService: fox.v1.Inference. Handlers parse, check what costs nothing and hand over to a
// Generation; they never wait. Read generation.h next.
#pragma once

#include "fox/v1/inference.grpc.pb.h"
#include "server/rpc/wire.h"

namespace fox {

using RawInference = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_GenerateStream<v1::Inference::WithRawCallbackMethod_Score<
        v1::Inference::WithRawCallbackMethod_Abort<v1::Inference::Service>>>>;

class GenerateService final : public RawInference {
 public:
  // `core` must outlive the server this is registered with.
  explicit GenerateService(ServerCore& core) : core_(core) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;

 private:
  ServerCore& core_;
};

}  // namespace fox
