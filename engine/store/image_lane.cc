// ImageLane: pieces through pinned memory. Read image_lane.h first.
#include "engine/store/image_lane.h"

#include "kernels/core/check.h"

namespace fox {
namespace {

absl::Status Copied(bool copied) {
  return copied ? absl::OkStatus() : absl::AbortedError("copy: the device failed");
}

}  // namespace

ImageLane::ImageLane(DeviceQueue* queue) {
  if (queue == nullptr) return;
  memory_ = queue->AllocatePinned(kPieceBytes);
  stream_ = queue->MakeCopyStream();
}

std::span<std::byte> ImageLane::Room(std::span<std::byte> piece) const {
  FOX_CHECK(piece.size() <= kPieceBytes);
  return stream_ == nullptr ? piece : std::span(memory_.as<std::byte>(), piece.size());
}

absl::Status ImageLane::Put(std::span<std::byte> piece) const {
  if (stream_ == nullptr) return absl::OkStatus();
  return Copied(stream_->Copy(memory_.data(), piece.size(), piece.data()));
}

absl::StatusOr<std::span<const std::byte>> ImageLane::Get(std::span<std::byte> piece) const {
  const std::span<std::byte> room = Room(piece);
  if (stream_ != nullptr) {
    const absl::Status status = Copied(stream_->Copy(piece.data(), piece.size(), room.data()));
    if (!status.ok()) return status;
  }
  return room;
}

}  // namespace fox
