// A DiskStore over files in memory or in a directory, and random snapshots for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/store/disk_store.h"
#include "tests/engine/store/fake_device.h"
#include "tests/engine/store/memory_files.h"

namespace fox {

inline constexpr int64_t kUnit = 64;

inline PagedKvShape Shape() {
  PagedKvShape shape;
  shape.layers = 2;
  shape.q_heads = shape.kv_heads = 2;
  shape.head_dim = 4;
  shape.num_pages = 1000;
  shape.max_slots = 4;
  shape.max_pages = 100;
  return shape;
}

using Bytes = std::vector<std::byte>;

// A snapshot of `tokens` tokens, with an image of random bits behind a right length and right
// pages.
struct Sample {
  StoredSnapshot what;
  Bytes image;
};

inline Sample MakeSample(uint64_t seed, int64_t tokens, const std::string& salt = "s",
                         double log_tolerance = -10) {
  std::mt19937_64 rng(seed);
  Sample sample{{salt, log_tolerance, {}, 0, -12.5}, {}};
  for (int64_t i = 0; i < tokens; ++i) {
    sample.what.tokens.push_back(static_cast<int32_t>(rng() % 1000));
  }
  const PagedKvShape shape = Shape();
  std::vector<int32_t> first;
  for (int64_t list = 0; list < shape.lists_per_slot(); ++list) {
    first.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(PagesFor(tokens))));
    sample.what.pages += PagesFor(tokens) - first.back();
  }
  sample.image.resize(SlotImageBytes(shape, sample.what.pages));
  for (std::byte& byte : sample.image) byte = static_cast<std::byte>(rng());
  std::memcpy(sample.image.data(), &tokens, sizeof(tokens));
  std::memcpy(sample.image.data() + 16, first.data(), first.size() * sizeof(int32_t));
  return sample;
}

// A store with two buffers, which may be a device's, over files in memory, or in a directory.
class Server {
 public:
  explicit Server(Disk& disk, int64_t max_bytes = int64_t{1} << 40, unsigned char identity = 1)
      : Server(std::make_unique<MemoryFiles>(disk), max_bytes, identity) {}
  // The buffers have room for `pages` pages.
  Server(Disk& disk, FakeDevice* device, int64_t pages)
      : Server(std::make_unique<MemoryFiles>(disk), int64_t{1} << 40, 1, device, pages) {}
  explicit Server(std::unique_ptr<FileSystem> files, int64_t max_bytes = int64_t{1} << 40,
                  unsigned char identity = 1, FakeDevice* device = nullptr, int64_t pages = 200)
      : device_(device), buffers_(2, Bytes(SlotImageBytes(Shape(), pages))) {
    DiskStoreOptions options;
    options.format.identity.fill(identity);
    options.format.shape = Shape();
    options.queue = device;
    options.max_bytes = max_bytes;
    options.has_threads = false;
    options.warn = [this](const std::string& line) { warnings.push_back(line); };
    files_ = files.get();
    store_ = std::make_unique<DiskStore>(
        std::move(files), std::vector<std::span<std::byte>>{buffers_[0], buffers_[1]}, options);
  }

  bool Write(const Sample& sample) {
    std::transform(sample.image.begin(), sample.image.end(), buffers_[0].begin(),
                   [this](std::byte byte) { return Inside(byte); });
    store_->Write(0, sample.what);
    return Done().ok;
  }
  // Reads the snapshot; ok: it is that one, to the last bit.
  bool Read(const Sample& sample) {
    std::fill(buffers_[1].begin(), buffers_[1].end(), std::byte{0x77});
    store_->Read(1, {sample.what.cache_salt, sample.what.log_tolerance, sample.what.tokens});
    const SnapshotStore::Done done = Done();
    if (!done.ok) return false;
    EXPECT_EQ(done.what.pages, sample.what.pages);
    EXPECT_EQ(done.what.max_log_evicted_mass, sample.what.max_log_evicted_mass);
    EXPECT_TRUE(
        std::equal(sample.image.begin(), sample.image.end(), buffers_[1].begin(),
                   [this](std::byte byte, std::byte inside) { return Inside(byte) == inside; }));
    return true;
  }
  int64_t Find(const Sample& sample, int64_t more_than = 0, int64_t most = 1 << 20) {
    const StoredSnapshot& what = sample.what;
    return store_->Find(what.cache_salt, what.log_tolerance, what.tokens, kUnit, more_than, most);
  }
  DiskStore& store() { return *store_; }
  MemoryFiles& memory() { return static_cast<MemoryFiles&>(*files_); }

  std::vector<std::string> warnings;

 private:
  // The byte as it is in a buffer.
  std::byte Inside(std::byte byte) const { return device_ == nullptr ? byte : ~byte; }
  SnapshotStore::Done Done() {
    EXPECT_FALSE(store_->has_done());
    EXPECT_TRUE(store_->RunOne());
    EXPECT_TRUE(store_->has_done());
    std::vector<SnapshotStore::Done> done = store_->TakeDone();
    EXPECT_EQ(done.size(), 1u);
    return done.at(0);
  }

  FakeDevice* const device_;
  std::vector<Bytes> buffers_;
  FileSystem* files_;
  std::unique_ptr<DiskStore> store_;
};

}  // namespace fox
