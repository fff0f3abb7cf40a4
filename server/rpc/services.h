// The services of fox.v1. `core` must outlive the server that they are registered with.
#pragma once

#include <functional>

#include "fox/v1/admin.grpc.pb.h"
#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "fox/v1/tokenizer.grpc.pb.h"
#include "server/rpc/raw_service.h"

namespace fox {

// The operator's calls. They answer at once and end nothing.
class AdminService final : public RawService<v1::Admin> {
 public:
  // `on_change` runs before the answer.
  AdminService(ServerCore& core, const std::function<void()>& on_change);
};

class GenerateService final : public RawService<v1::Inference> {
 public:
  explicit GenerateService(ServerCore& core);
};

// Read-only. Answers from constants and from a copy of the engine's counters; never waits for the
// engine.
class InfoService final : public RawService<v1::Info> {
 public:
  // `all_administer`: true if clients without a token or a gateway's name are administrators here.
  // Other clients see only the waiting time of the load, because its totals show exactly the work
  // of other tenants.
  InfoService(ServerCore& core, bool all_administer);
};

// A long text takes a while, on a thread of this service's own that yields to all threads that
// generate. A call that is cancelled, by its client, its deadline or a stop of the server, ends at
// once.
class TokenizerService final : public RawService<v1::Tokenizer> {
 public:
  explicit TokenizerService(ServerCore& core);
};

}  // namespace fox
