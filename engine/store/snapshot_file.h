// SnapshotFile: the format of a stored snapshot, written whole or not at all, and believed only if
// every byte is right:
//   header     magic, sizes, identity, namespace, pages, certificate; salt; tokens; a checksum of
//              each piece of the image; a checksum of the header
//   zeros      up to a multiple of 4096
//   image      kernels/paging/slot_image.h
// The image is written and read in pieces, each with its checksum, so that a piece is still in its
// core's cache when it is checked and copied. Numbers have the processor's byte order, which the
// identity names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/request/snapshot_store.h"
#include "engine/store/digest.h"
#include "engine/store/file_system.h"
#include "engine/store/image_lane.h"
#include "kernels/core/thread_pool.h"
#include "kernels/paging/slot_image.h"

namespace fox {

// The common part of all snapshots of one server.
struct SnapshotFormat {
  Sha256Digest identity = {};  // of model and arithmetic: equal ones compute the same bits
  PagedKvShape shape;
};

// The bytes of a file with this snapshot.
int64_t SnapshotFileBytes(const SnapshotFormat& format, const StoredSnapshot& what);

// Writes the snapshot, whose image has the size that its pages take, as `name` by way of
// `temporary`. After an error, of FileSystem or the lane, there may be a file `temporary`, but none
// that ReadSnapshotFile takes for a snapshot.
absl::Status WriteSnapshotFile(FileSystem& files, const SnapshotFormat& format,
                               const StoredSnapshot& what, std::span<std::byte> image,
                               ImageLane& lane, const std::string& temporary,
                               const std::string& name);

// Reads the file into `image`, and its pages and certificate into `what`, whose other fields must
// be the file's. Each of `threads` reads pieces by one of `lanes` while other pieces are copied to
// the device. After an error the image has any bytes. NotFound: there is no file. DataLoss: it is
// no such snapshot. Otherwise an error of FileSystem or of a lane.
absl::Status ReadSnapshotFile(FileSystem& files, const SnapshotFormat& format,
                              const std::string& name, ThreadPool& threads,
                              std::span<ImageLane> lanes, std::span<std::byte> image,
                              StoredSnapshot* what);

}  // namespace fox
