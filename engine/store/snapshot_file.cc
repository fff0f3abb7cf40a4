// SnapshotFile: how the header is made and believed. Read snapshot_file.h first.
#include "engine/store/snapshot_file.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "absl/cleanup/cleanup.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr char kMagic[8] = {'f', 'o', 'x', 's', 'n', 'a', 'p', '2'};
constexpr int64_t kAlignment = 4096;
constexpr auto kPiece = static_cast<int64_t>(kPieceBytes);
constexpr int64_t kMaxHeaderBytes = int64_t{64} << 20;

struct Prefix {
  char magic[8];
  int64_t header_bytes;  // with the zeros
  int64_t image_bytes;
  Sha256Digest identity;
  int64_t salt_bytes;
  int64_t tokens;
  double log_tolerance;
  int64_t pages;
  double max_log_evicted_mass;
};
static_assert(sizeof(Prefix) == 96 && std::is_trivially_copyable_v<Prefix>);

int64_t NumPieces(int64_t image_bytes) { return (image_bytes + kPiece - 1) / kPiece; }

std::span<std::byte> Piece(std::span<std::byte> image, int64_t index) {
  const int64_t begin = index * kPiece;
  const int64_t bytes = std::min(kPiece, static_cast<int64_t>(image.size()) - begin);
  return image.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
}

// Bytes of the header up to its own checksum.
int64_t BytesBefore(int64_t salt_bytes, int64_t tokens, int64_t image_bytes) {
  return static_cast<int64_t>(sizeof(Prefix)) + salt_bytes +
         tokens * static_cast<int64_t>(sizeof(int32_t)) +
         NumPieces(image_bytes) * static_cast<int64_t>(sizeof(Checksum));
}

int64_t HeaderBytes(int64_t salt_bytes, int64_t tokens, int64_t image_bytes) {
  const int64_t bytes =
      BytesBefore(salt_bytes, tokens, image_bytes) + static_cast<int64_t>(sizeof(Checksum));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Prefix PrefixOf(const SnapshotFormat& format, const StoredSnapshot& what) {
  Prefix prefix = {};
  std::memcpy(prefix.magic, kMagic, sizeof(kMagic));
  prefix.image_bytes = static_cast<int64_t>(SlotImageBytes(format.shape, what.pages));
  prefix.identity = format.identity;
  prefix.salt_bytes = static_cast<int64_t>(what.cache_salt.size());
  prefix.tokens = static_cast<int64_t>(what.tokens.size());
  prefix.log_tolerance = what.log_tolerance;
  prefix.pages = what.pages;
  prefix.max_log_evicted_mass = what.max_log_evicted_mass;
  prefix.header_bytes = HeaderBytes(prefix.salt_bytes, prefix.tokens, prefix.image_bytes);
  return prefix;
}

// The header, with its zeros.
std::vector<std::byte> MakeHeader(const Prefix& prefix, const StoredSnapshot& what,
                                  const std::vector<Checksum>& checksums) {
  std::vector<std::byte> header(static_cast<size_t>(prefix.header_bytes));
  size_t size = 0;
  const auto add = [&](const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(header.data() + size, data, bytes);
    size += bytes;
  };
  add(&prefix, sizeof(prefix));
  add(what.cache_salt.data(), what.cache_salt.size());
  add(what.tokens.data(), what.tokens.size() * sizeof(int32_t));
  add(checksums.data(), checksums.size() * sizeof(Checksum));
  const Checksum own = ChecksumOf(std::span(header).first(size));
  add(own.data(), own.size());
  return header;
}

absl::Status Damaged(const char* why) { return absl::DataLossError(why); }

// The checksums of the image's pieces, if `header` belongs to a file of `file_bytes` bytes with the
// snapshot `what`. Fills in the rest of `what`.
absl::StatusOr<std::vector<Checksum>> ParseHeader(const SnapshotFormat& format,
                                                  std::span<const std::byte> header,
                                                  int64_t file_bytes, StoredSnapshot* what) {
  Prefix prefix = {};
  std::memcpy(&prefix, header.data(), sizeof(prefix));
  if (prefix.pages < 0 || prefix.pages > file_bytes) return Damaged("a wrong number of pages");
  StoredSnapshot named = *what;
  named.pages = prefix.pages;
  named.max_log_evicted_mass = prefix.max_log_evicted_mass;
  const Prefix expected = PrefixOf(format, named);
  if (std::memcmp(&prefix, &expected, sizeof(prefix)) != 0) return Damaged("another snapshot");
  if (file_bytes != prefix.header_bytes + prefix.image_bytes) return Damaged("a wrong size");
  FOX_CHECK(static_cast<int64_t>(header.size()) == prefix.header_bytes);
  std::vector<Checksum> checksums(static_cast<size_t>(NumPieces(prefix.image_bytes)));
  const auto before =
      static_cast<size_t>(BytesBefore(prefix.salt_bytes, prefix.tokens, prefix.image_bytes));
  const size_t checksum_bytes = checksums.size() * sizeof(Checksum);
  std::memcpy(checksums.data(), header.data() + before - checksum_bytes, checksum_bytes);
  // Equal bytes have the same salt, the same tokens and the same checksum.
  const std::vector<std::byte> whole = MakeHeader(expected, named, checksums);
  if (!std::equal(whole.begin(), whole.end(), header.begin(), header.end())) {
    return Damaged("a wrong header");
  }
  *what = std::move(named);
  return checksums;
}

// The header's size, as the first bytes of a file tell it; 0: it is impossible.
int64_t SizeOfHeader(std::span<const std::byte> prefix_bytes, int64_t file_bytes) {
  Prefix prefix = {};
  std::memcpy(&prefix, prefix_bytes.data(), sizeof(prefix));
  const bool ours = std::memcmp(prefix.magic, kMagic, sizeof(kMagic)) == 0;
  const bool possible = prefix.header_bytes >= kAlignment &&
                        prefix.header_bytes <= std::min(file_bytes, kMaxHeaderBytes);
  return ours && possible ? prefix.header_bytes : 0;
}

// A file of which one thread after the other takes pieces.
struct OpenImage {
  FileSystem& files;
  int file;
  int64_t offset;
  const std::vector<Checksum>& checksums;
  std::span<std::byte> image;
  const PagedKvShape& shape;
  const StoredSnapshot& what;
};

absl::Status ReadPiece(const OpenImage& from, int64_t index, ImageLane& lane) {
  const std::span<std::byte> piece = Piece(from.image, index);
  const std::span<std::byte> on_host = lane.Room(piece);
  absl::Status status = from.files.Read(from.file, on_host, from.offset + index * kPiece);
  if (!status.ok()) return status;
  const bool right = ChecksumOf(on_host) == from.checksums[static_cast<size_t>(index)];
  const auto tokens = static_cast<int64_t>(from.what.tokens.size());
  if (!right ||
      (index == 0 && PagesInImage(from.shape, on_host.data(), tokens) != from.what.pages)) {
    return Damaged("a wrong image");
  }
  return lane.Put(piece);
}

// Stops at the first failure.
absl::Status ReadImage(const OpenImage& from, ThreadPool& threads, std::span<ImageLane> lanes) {
  FOX_CHECK(!lanes.empty() && PagesInImageBytes(from.shape) <= kPiece);
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<absl::Status> statuses(lanes.size());
  threads.ForEach(static_cast<int64_t>(lanes.size()), true, [&](int64_t lane) {
    const auto at = static_cast<size_t>(lane);
    const auto pieces = static_cast<int64_t>(from.checksums.size());
    for (int64_t i = 0; !failed && (i = next++) < pieces;) {
      statuses[at] = ReadPiece(from, i, lanes[at]);
      if (!statuses[at].ok()) failed = true;
    }
    statuses[at].Update(lanes[at].Finish());
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SnapshotFileBytes(const SnapshotFormat& format, const StoredSnapshot& what) {
  const Prefix prefix = PrefixOf(format, what);
  return prefix.header_bytes + prefix.image_bytes;
}

// The header comes last, because it has the checksums.
absl::Status WriteSnapshotFile(FileSystem& files, const SnapshotFormat& format,
                               const StoredSnapshot& what, std::span<std::byte> image,
                               ImageLane& lane, const std::string& temporary,
                               const std::string& name) {
  const Prefix prefix = PrefixOf(format, what);
  FOX_CHECK(static_cast<int64_t>(image.size()) == prefix.image_bytes);
  const absl::StatusOr<int> file = files.Create(temporary);
  if (!file.ok()) return file.status();
  absl::Status status;
  std::vector<Checksum> checksums;
  for (int64_t i = 0; status.ok() && i < NumPieces(prefix.image_bytes); ++i) {
    const auto piece = lane.Get(Piece(image, i));
    status = piece.status();
    if (!status.ok()) break;
    checksums.push_back(ChecksumOf(*piece));
    status = files.Write(*file, *piece, prefix.header_bytes + i * kPiece);
  }
  if (status.ok()) status = files.Write(*file, MakeHeader(prefix, what, checksums), 0);
  if (status.ok()) status = files.Sync(*file);
  files.Close(*file);
  if (status.ok()) status = files.Rename(temporary, name);
  if (status.ok()) status = files.SyncNames();
  return status;
}

absl::Status ReadSnapshotFile(FileSystem& files, const SnapshotFormat& format,
                              const std::string& name, ThreadPool& threads,
                              std::span<ImageLane> lanes, std::span<std::byte> image,
                              StoredSnapshot* what) {
  const absl::StatusOr<int> file = files.Open(name);
  if (!file.ok()) return file.status();
  const absl::Cleanup close = [&] { files.Close(*file); };
  const absl::StatusOr<int64_t> bytes = files.Size(*file);
  if (!bytes.ok()) return bytes.status();
  std::vector<std::byte> header(sizeof(Prefix));
  if (*bytes < static_cast<int64_t>(header.size())) return Damaged("too short");
  if (absl::Status status = files.Read(*file, header, 0); !status.ok()) return status;
  header.resize(static_cast<size_t>(SizeOfHeader(header, *bytes)));
  if (header.empty()) return Damaged("no snapshot");
  if (absl::Status status = files.Read(*file, header, 0); !status.ok()) return status;
  StoredSnapshot found = *what;
  const auto checksums = ParseHeader(format, header, *bytes, &found);
  if (!checksums.ok()) return checksums.status();
  const auto header_bytes = static_cast<int64_t>(header.size());
  if (*bytes - header_bytes > static_cast<int64_t>(image.size())) return Damaged("too large");
  image = image.first(static_cast<size_t>(*bytes - header_bytes));
  absl::Status status = ReadImage(
      {files, *file, header_bytes, *checksums, image, format.shape, found}, threads, lanes);
  if (!status.ok()) return status;
  *what = std::move(found);
  return absl::OkStatus();
}

}  // namespace fox
