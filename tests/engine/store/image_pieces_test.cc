// Images of many pieces, in a device's memory and in the host's: whatever goes wrong with one piece
// after others have been copied, the snapshot does not arrive, and the next one does.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/engine/store/disk_store_fixture.h"
#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

constexpr int64_t kTokens = 64 * 1200, kPages = 4 * 1200;

int64_t PiecesOf(const Sample& sample) {
  return static_cast<int64_t>((sample.image.size() + kPieceBytes - 1) / kPieceBytes);
}

class ImagePiecesTest : public ::testing::TestWithParam<bool> {
 protected:
  ImagePiecesTest() {
    Server server = MakeServer();
    EXPECT_TRUE(server.Write(sample_));
    EXPECT_EQ(device_.copies, on_device() ? pieces_ : 0);
    name_ = disk_.names.begin()->first;
    whole_ = disk_.names.begin()->second->now;
  }
  static bool on_device() { return GetParam(); }
  Server MakeServer() { return {disk_, on_device() ? &device_ : nullptr, kPages}; }
  // Reads `file` with a new server. `pieces`: that reach the device. Then life goes on.
  void ExpectRefused(const Bytes& file, int64_t pieces) {
    disk_.names.clear();
    disk_.names[name_] = std::make_shared<Disk::Inode>(Disk::Inode{file, file});
    Server server = MakeServer();
    device_.copies = 0;
    EXPECT_FALSE(server.Read(sample_));
    EXPECT_EQ(device_.copies, on_device() ? pieces : 0);
    ExpectGoesOn(server);
  }
  // After one failure, for which the file was removed.
  void ExpectGoesOn(Server& server) {
    EXPECT_TRUE(disk_.names.empty());
    EXPECT_EQ(server.store().stats().errors, 1);
    EXPECT_EQ(server.warnings.size(), 1u);
    EXPECT_EQ(server.memory().open_files(), 0u);
    EXPECT_EQ(server.Find(sample_), 0);
    EXPECT_TRUE(server.Write(sample_));
    EXPECT_TRUE(server.Read(sample_));
  }

  const Sample sample_ = MakeSample(1, kTokens);
  const int64_t pieces_ = PiecesOf(sample_);
  Disk disk_;
  FakeDevice device_;
  std::string name_;
  Bytes whole_;
};

INSTANTIATE_TEST_SUITE_P(Memory, ImagePiecesTest, ::testing::Bool(),
                         [](const auto& about) { return about.param ? "Device" : "Host"; });

TEST_P(ImagePiecesTest, AllArrive) {
  ASSERT_GT(pieces_, 4);
  ASSERT_NE(sample_.image.size() % kPieceBytes, 0u);
  Server server = MakeServer();
  device_.copies = 0;
  EXPECT_TRUE(server.Read(sample_));
  EXPECT_EQ(device_.copies, on_device() ? pieces_ : 0);
}

TEST_P(ImagePiecesTest, AWrongPieceRefusesTheOthers) {
  const size_t begin = whole_.size() - sample_.image.size();
  for (int64_t piece = 0; piece < pieces_; ++piece) {
    SCOPED_TRACE(piece);
    Bytes file = whole_;
    file[begin + static_cast<size_t>(piece) * kPieceBytes + 100] ^= std::byte{1};
    ExpectRefused(file, piece);
  }
  SCOPED_TRACE("the last bit");
  Bytes file = whole_;
  file.back() ^= std::byte{0x80};
  ExpectRefused(file, pieces_ - 1);
}

// Two pieces that are right in themselves have changed places.
TEST_P(ImagePiecesTest, APieceBelongsToItsPlace) {
  Bytes file = whole_;
  const auto first = file.end() - static_cast<int64_t>(sample_.image.size());
  const auto piece = static_cast<int64_t>(kPieceBytes);
  std::swap_ranges(first + piece, first + 2 * piece, first + 2 * piece);
  ExpectRefused(file, 1);
}

TEST_P(ImagePiecesTest, ATornFileIsRefusedUnread) {
  for (size_t pieces = 0; pieces < static_cast<size_t>(pieces_); ++pieces) {
    SCOPED_TRACE(pieces);
    const size_t begin = whole_.size() - sample_.image.size();
    ExpectRefused(Bytes(whole_.data(), whole_.data() + begin + pieces * kPieceBytes), 0);
  }
}

// Also a file that is truncated while it is read.
TEST_P(ImagePiecesTest, AReadErrorInTheMiddle) {
  for (int64_t read = 0; read < 2 + pieces_; ++read) {  // two of the header
    SCOPED_TRACE(read);
    disk_.names.clear();
    disk_.names[name_] = std::make_shared<Disk::Inode>(Disk::Inode{whole_, whole_});
    Server server = MakeServer();
    device_.copies = 0;
    server.memory().read_error = absl::UnavailableError("read: Input/output error");
    server.memory().fail_read = read;
    EXPECT_FALSE(server.Read(sample_));
    EXPECT_EQ(device_.copies, on_device() ? std::max<int64_t>(0, read - 2) : 0);
    EXPECT_EQ(server.memory().reads, read + 1);  // none after the failure
    server.memory().read_error = absl::OkStatus();
    ExpectGoesOn(server);
  }
}

// A file is not to blame for a device, and no file is made of what did not leave it.
TEST_P(ImagePiecesTest, ACopyFails) {
  if (!on_device()) return;
  const Sample other = MakeSample(2, kTokens);
  for (const int64_t copy : {int64_t{0}, pieces_ / 2, pieces_ - 1}) {
    SCOPED_TRACE(copy);
    Server server = MakeServer();
    device_.copies = 0;
    device_.fail_at = copy;
    EXPECT_FALSE(server.Read(sample_));
    EXPECT_EQ(server.Find(sample_), kTokens);
    device_.copies = 0;
    if (copy < PiecesOf(other)) {
      EXPECT_FALSE(server.Write(other));
    }
    EXPECT_EQ(server.Find(other), 0);
    EXPECT_EQ(disk_.names.size(), 1u);
    EXPECT_EQ(server.memory().open_files(), 0u);
    device_.fail_at = -1;
    EXPECT_TRUE(server.Read(sample_));
  }
}

// Threads of the store that share a file: all of its pieces arrive, or the read fails.
TEST_P(ImagePiecesTest, ThreadsShareThePieces) {
  const TemporaryDir dir;
  std::vector<Bytes> buffers(2, Bytes(SlotImageBytes(Shape(), kPages)));
  DiskStoreOptions options;
  options.format.shape = Shape();
  options.queue = on_device() ? &device_ : nullptr;
  options.max_bytes = int64_t{1} << 40;
  options.read_threads = 3;
  DiskStore store(*OpenDirectory(dir.path()), {buffers[0], buffers[1]}, options);
  const auto wait = [&store] {
    while (!store.has_done()) std::this_thread::yield();
    return store.TakeDone().at(0).ok;
  };
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    for (size_t i = 0; i < sample_.image.size(); ++i) {
      buffers[0][i] = on_device() ? ~sample_.image[i] : sample_.image[i];
    }
    store.Write(0, sample_.what);
    EXPECT_TRUE(wait());
    std::fill(buffers[1].begin(), buffers[1].end(), std::byte{0x77});
    const bool fails = on_device() && round % 4 == 3;
    if (fails) device_.fail_at = device_.copies + round % pieces_;
    store.Read(1, {"s", -10, sample_.what.tokens});
    EXPECT_EQ(wait(), !fails);
    device_.fail_at = -1;
    if (fails) continue;
    EXPECT_TRUE(std::equal(buffers[0].begin(),
                           buffers[0].begin() + static_cast<int64_t>(sample_.image.size()),
                           buffers[1].begin()));
  }
}

}  // namespace
}  // namespace fox
