// VllmService: vllm.grpc.engine.VllmEngine, by which a gateway knows this server as one of its
// workers: a translation of fox.v1. Read vllm_call.h next.
#pragma once

#include <functional>
#include <memory>

#include "server/rpc/wire.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace fox {

namespace vllm_wire = ::vllm::grpc::engine;

using RawVllmEngine = vllm_wire::VllmEngine::WithRawCallbackMethod_Generate<
    vllm_wire::VllmEngine::WithRawCallbackMethod_HealthCheck<
        vllm_wire::VllmEngine::WithRawCallbackMethod_Abort<
            vllm_wire::VllmEngine::WithRawCallbackMethod_GetModelInfo<
                vllm_wire::VllmEngine::WithRawCallbackMethod_GetServerInfo<
                    vllm_wire::VllmEngine::WithRawCallbackMethod_GetLoads<
                        vllm_wire::VllmEngine::WithRawCallbackMethod_GetTokenizer<
                            vllm_wire::VllmEngine::Service>>>>>>>;

class VllmService final : public RawVllmEngine {
 public:
  // `core` must outlive the server this is registered with. `serving`: what grpc.health.v1 says.
  VllmService(ServerCore& core, std::function<bool()> serving);
  ~VllmService() override;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTokenizer(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;

 private:
  class Tokenizers;

  ServerCore& core_;
  const std::function<bool()> serving_;
  const std::shared_ptr<Tokenizers> tokenizers_;
};

}  // namespace fox
