// VllmService: vllm.grpc.engine.VllmEngine, by which a gateway knows this server as one of its
// workers: a translation of fox.v1. Read vllm_call.h next.
#pragma once

#include <functional>

#include "server/rpc/raw_service.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace fox {

namespace vllm_wire = ::vllm::grpc::engine;

class VllmService final : public RawService<vllm_wire::VllmEngine> {
 public:
  // `serving`: what grpc.health.v1 says.
  VllmService(ServerCore& core, std::function<bool()> serving);

 private:
  void ServeGenerate();
  void ServeGetTokenizer();
};

}  // namespace fox
