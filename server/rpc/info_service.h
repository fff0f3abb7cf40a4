// InfoService: fox.v1.Info, read-only. Answers from constants and from a copy of the engine's
// counters; never waits for the engine.
#pragma once

#include "fox/v1/info.grpc.pb.h"
#include "server/rpc/raw_service.h"

namespace fox {

// What the methods answer; of constants and of a copy of the engine's counters.
v1::ServerInfo DescribeServer(const ServerCore& core);
v1::ModelInfo DescribeModel(const ServerCore& core);
v1::Load DescribeLoad(ServerCore& core);

class InfoService final : public RawService<v1::Info> {
 public:
  explicit InfoService(ServerCore& core);
};

}  // namespace fox
