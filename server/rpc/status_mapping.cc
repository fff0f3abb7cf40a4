// Status mapping: see status_mapping.h.
#include "server/rpc/status_mapping.h"

#include <string>

namespace fox {
namespace {

constexpr size_t kMaxMessageBytes = 1024;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message().data(), status.message().size());
  if (message.size() > kMaxMessageBytes) {
    size_t end = kMaxMessageBytes;
    while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xc0) == 0x80) --end;
    message.resize(end);  // not inside a UTF-8 character
  }
  // The canonical codes have the same numbers on both sides.
  const bool ours = absl::IsUnknown(status) || absl::IsDataLoss(status);  // to answer for
  return grpc::Status(ours ? grpc::INTERNAL : static_cast<grpc::StatusCode>(status.code()),
                      message);
}

}  // namespace fox
