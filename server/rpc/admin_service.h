// AdminService: fox.v1.Admin, the operator's calls. Its calls answer at once and end nothing.
#pragma once

#include <functional>

#include "fox/v1/admin.grpc.pb.h"
#include "server/rpc/wire.h"

namespace fox {

using RawAdmin = v1::Admin::WithRawCallbackMethod_Drain<
    v1::Admin::WithRawCallbackMethod_Undrain<v1::Admin::Service>>;

class AdminService final : public RawAdmin {
 public:
  // `core` must outlive the server this is registered with. `on_change` runs before the answer.
  AdminService(ServerCore& core, std::function<void()> on_change)
      : core_(core), on_change_(std::move(on_change)) {}

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;

 private:
  ServerCore& core_;
  const std::function<void()> on_change_;
};

}  // namespace fox
