// ImageLane: how a thread of a store reaches an image in a staging buffer of the executor, piece by
// piece and beside the steps. In a device's memory: by a copy stream and pinned memory for two
// pieces, all the lane's own, so that a piece is copied while the next one is read and checked. In
// host memory: where it lies, without a copy.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/buffer.h"
#include "kernels/interface/device_queue.h"

namespace fox {

// The most bytes of a piece. It is read from the system's page cache, checked and copied on while
// it lies in a core's second-level cache (1 MiB or more): reading takes half as long as into
// memory.
inline constexpr size_t kPieceBytes = size_t{1} << 20;

// One thread at a time. Errors are Aborted: the device failed.
class ImageLane {
 public:
  // `queue`: of the device that has the buffers; null: they are in host memory. On the thread that
  // calls the Ops; failures are in queue->error().
  explicit ImageLane(DeviceQueue* queue);

  // Host memory for the bytes of `piece`, a part of an image. After Put they are on their way to
  // it, after Finish there. Whoever has called Put calls Finish, also after an error.
  std::span<std::byte> Room(std::span<std::byte> piece) const;
  absl::Status Put(std::span<std::byte> piece);
  absl::Status Finish() const;
  // The piece in host memory, until the next call. REQUIRES: Finish after the last Put.
  absl::StatusOr<std::span<const std::byte>> Get(std::span<std::byte> piece) const;

 private:
  Buffer memory_;                       // of two pieces
  size_t half_ = 0;                     // offset of the piece's memory that Room returns next
  std::unique_ptr<CopyStream> stream_;  // null: images are in host memory
};

}  // namespace fox
