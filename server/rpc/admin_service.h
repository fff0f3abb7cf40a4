// AdminService: fox.v1.Admin, the operator's calls. Its calls answer at once and end nothing.
#pragma once

#include <functional>

#include "fox/v1/admin.grpc.pb.h"
#include "server/rpc/raw_service.h"

namespace fox {

class AdminService final : public RawService<v1::Admin> {
 public:
  // `on_change` runs before the answer.
  AdminService(ServerCore& core, const std::function<void()>& on_change);
};

}  // namespace fox
