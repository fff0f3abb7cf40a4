// GenerateService: fox.v1.Inference. Handlers check what costs nothing and hand over to a
// Generation. Read generation_reactor.h next.
#pragma once

#include "fox/v1/inference.grpc.pb.h"
#include "server/rpc/raw_service.h"

namespace fox {

class GenerateService final : public RawService<v1::Inference> {
 public:
  explicit GenerateService(ServerCore& core);
};

}  // namespace fox
