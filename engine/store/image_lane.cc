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
  memory_ = queue->AllocatePinned(2 * kPieceBytes);
  stream_ = queue->MakeCopyStream();
}

std::span<std::byte> ImageLane::Room(std::span<std::byte> piece) const {
  FOX_CHECK(piece.size() <= kPieceBytes);
  return stream_ == nullptr ? piece : std::span(memory_.as<std::byte>() + half_, piece.size());
}

// The copy of the piece before ends first, so the other half is free then.
absl::Status ImageLane::Put(std::span<std::byte> piece) {
  if (stream_ == nullptr) return absl::OkStatus();
  const std::span<std::byte> room = Room(piece);
  half_ = kPieceBytes - half_;
  return Copied(stream_->Wait() && stream_->Begin(room.data(), piece.size(), piece.data()));
}

absl::Status ImageLane::Finish() const { return Copied(stream_ == nullptr || stream_->Wait()); }

absl::StatusOr<std::span<const std::byte>> ImageLane::Get(std::span<std::byte> piece) const {
  const std::span<std::byte> room = Room(piece);
  if (stream_ != nullptr) {
    const bool begun = stream_->Begin(piece.data(), piece.size(), room.data());
    const absl::Status status = Copied(begun && stream_->Wait());
    if (!status.ok()) return status;
  }
  return room;
}

}  // namespace fox
