// AdminService: fox.v1.Admin, the operator's calls. Draining answers at once and ends nothing.
#pragma once

#include <functional>

#include "fox/v1/admin.grpc.pb.h"
#include "server/wire.h"

namespace fox {

class AdminService final : public v1::Admin::WithRawCallbackMethod_Drain<v1::Admin::Service> {
 public:
  // `core` must outlive the server this is registered with. `on_drain` runs before the answer.
  AdminService(ServerCore& core, std::function<void()> on_drain)
      : core_(core), on_drain_(std::move(on_drain)) {}

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;

 private:
  ServerCore& core_;
  const std::function<void()> on_drain_;
};

}  // namespace fox
