// DiskStore: the next server finds a snapshot that was written, bit for bit or not at all: after a
// failure or a loss of power at any call, beside damaged and foreign files, and within its limit.
#include "engine/store/disk_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/engine/store/memory_files.h"
#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

constexpr int64_t kUnit = 64;

PagedKvShape Shape() {
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

Sample MakeSample(uint64_t seed, int64_t tokens, const std::string& salt = "s",
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

// A store with two buffers over files in memory, or in a directory.
class Server {
 public:
  explicit Server(Disk& disk, int64_t max_bytes = int64_t{1} << 40, unsigned char identity = 1)
      : Server(std::make_unique<MemoryFiles>(disk), max_bytes, identity) {}
  explicit Server(std::unique_ptr<FileSystem> files, int64_t max_bytes = int64_t{1} << 40,
                  unsigned char identity = 1)
      : buffers_(2, Bytes(SlotImageBytes(Shape(), 200))) {
    DiskStoreOptions options;
    options.format.identity.fill(identity);
    options.format.shape = Shape();
    options.max_bytes = max_bytes;
    options.has_threads = false;
    options.warn = [this](const std::string& line) { warnings.push_back(line); };
    files_ = files.get();
    store_ = std::make_unique<DiskStore>(
        std::move(files), std::vector<std::span<std::byte>>{buffers_[0], buffers_[1]}, options);
  }

  bool Write(const Sample& sample) {
    std::copy(sample.image.begin(), sample.image.end(), buffers_[0].begin());
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
    EXPECT_TRUE(std::equal(sample.image.begin(), sample.image.end(), buffers_[1].begin()));
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
  SnapshotStore::Done Done() {
    EXPECT_FALSE(store_->has_done());
    EXPECT_TRUE(store_->RunOne());
    EXPECT_TRUE(store_->has_done());
    std::vector<SnapshotStore::Done> done = store_->TakeDone();
    EXPECT_EQ(done.size(), 1u);
    return done.at(0);
  }

  std::vector<Bytes> buffers_;
  FileSystem* files_;
  std::unique_ptr<DiskStore> store_;
};

// The file of the only snapshot on the disk.
std::string OnlyName(const Disk& disk) {
  EXPECT_EQ(disk.names.size(), 1u);
  return disk.names.begin()->first;
}

TEST(DiskStoreTest, TheNextServerFindsTheLongestPrefix) {
  Disk disk;
  const Sample whole = MakeSample(1, 640);
  const auto part = [&whole](int64_t tokens) {
    Sample sample = MakeSample(2, tokens);
    std::copy_n(whole.what.tokens.begin(), tokens, sample.what.tokens.begin());
    return sample;
  };
  {
    Server server(disk);
    EXPECT_EQ(server.Find(whole), 0);
    for (const int64_t tokens : {64, 128, 320}) EXPECT_TRUE(server.Write(part(tokens))) << tokens;
    EXPECT_EQ(server.Find(whole), 320);
  }
  Server server(disk);
  EXPECT_EQ(server.store().stats().files, 3);
  EXPECT_EQ(server.Find(whole), 320);
  EXPECT_EQ(server.Find(whole, 0, 319), 128);
  EXPECT_EQ(server.Find(whole, 128, 319), 0);
  EXPECT_EQ(server.store().Find("s", -10, whole.what.tokens, 128, 0, 640), 128);
  for (const int64_t tokens : {64, 128, 320}) EXPECT_TRUE(server.Read(part(tokens))) << tokens;
  EXPECT_FALSE(server.Read(whole));
  EXPECT_EQ(server.store().stats().read, 3);
  EXPECT_EQ(server.store().stats().errors, 0);
}

// Equal tokens with another salt or tolerance, or for another server, or with one other token.
TEST(DiskStoreTest, NamespacesAndServersShareNothing) {
  Disk disk;
  const Sample sample = MakeSample(1, 128);
  ASSERT_TRUE(Server(disk).Write(sample));
  Server server(disk);
  Sample other = MakeSample(1, 128, "t");
  EXPECT_EQ(server.Find(other), 0);
  EXPECT_FALSE(server.Read(other));
  other = MakeSample(1, 128, "s", -11);
  EXPECT_EQ(server.Find(other), 0);
  EXPECT_FALSE(server.Read(other));
  other = sample;
  ++other.what.tokens[5];
  EXPECT_EQ(server.Find(other), 0);
  EXPECT_FALSE(server.Read(other));
  Server stranger(disk, int64_t{1} << 40, /*identity=*/2);
  EXPECT_EQ(stranger.Find(sample), 0);
  EXPECT_FALSE(stranger.Read(sample));
  EXPECT_EQ(stranger.store().stats().files, 1);  // it counts for the limit
  EXPECT_TRUE(server.Read(sample));
}

// A hash alone is never believed: a whole file of another snapshot under this snapshot's name.
TEST(DiskStoreTest, AForeignFileUnderARightNameIsRefused) {
  const Sample sample = MakeSample(1, 128);
  const std::pair<const char*, std::function<void(Server&)>> cases[] = {
      {"other tokens", [](Server& server) { server.Write(MakeSample(2, 128)); }},
      {"fewer tokens", [](Server& server) { server.Write(MakeSample(1, 64)); }},
      {"another salt", [](Server& server) { server.Write(MakeSample(1, 128, "t")); }},
      {"another tolerance", [](Server& server) { server.Write(MakeSample(1, 128, "s", -9)); }},
  };
  for (const unsigned char identity : std::array<unsigned char, 2>{1, 2}) {
    for (const auto& [name, write] : cases) {
      SCOPED_TRACE(name);
      Disk disk;
      ASSERT_TRUE(Server(disk).Write(sample));
      const std::string right = OnlyName(disk);
      disk.names.clear();
      Server writer(disk, int64_t{1} << 40, identity);
      write(writer);
      const auto foreign = disk.names.begin()->second;
      disk.names = {{right, foreign}};
      Server server(disk);
      EXPECT_EQ(server.Find(sample), 128);
      EXPECT_FALSE(server.Read(sample));
      EXPECT_EQ(server.store().stats().errors, 1);
      EXPECT_TRUE(disk.names.empty());  // it is deleted
      EXPECT_EQ(server.Find(sample), 0);
    }
  }
}

// Every way to damage a file, at every kind of place in it.
TEST(DiskStoreTest, DamagedFilesAreDeletedAndNeverBelieved) {
  const Sample sample = MakeSample(3, 192, "a salt");
  Disk disk;
  ASSERT_TRUE(Server(disk).Write(sample));
  const std::string name = OnlyName(disk);
  const Bytes whole = disk.names[name]->now;
  const size_t header = 4096;
  ASSERT_EQ(whole.size(), header + sample.image.size());
  std::mt19937_64 rng(5);
  std::vector<std::pair<std::string, Bytes>> damaged;
  const auto add = [&](const std::string& how, Bytes bytes) {
    if (bytes != whole) damaged.emplace_back(how, std::move(bytes));
  };
  // Each byte of the numbers and the salt, then each 37th.
  for (size_t at = 0; at < whole.size(); at += at < 110 ? 1 : at < header ? 37 : 211) {
    Bytes bytes = whole;
    bytes[at] ^= static_cast<std::byte>(1 << rng() % 8);
    add("a bit of byte " + std::to_string(at), bytes);
    for (const uint64_t value : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 62}) {
      if (at > 96 || at % 8 != 0) continue;
      std::memcpy(bytes.data() + at, &value, sizeof(value));
      add("a number at " + std::to_string(at), bytes);
    }
  }
  for (size_t size = 0; size < whole.size(); size += size < 200 ? 13 : 509) {
    add("its first bytes: " + std::to_string(size), Bytes(whole.begin(), whole.begin() + size));
    Bytes zeros = whole;
    std::fill(zeros.begin() + size, zeros.end(), std::byte{});
    add("zeros from " + std::to_string(size), zeros);
  }
  Bytes longer = whole;
  longer.push_back(std::byte{});
  add("one byte more", longer);
  Bytes twice = whole;
  twice.insert(twice.end(), whole.begin(), whole.end());
  add("twice", twice);
  Bytes rubbish = whole;
  for (std::byte& byte : rubbish) byte = static_cast<std::byte>(rng());
  add("rubbish", rubbish);
  EXPECT_GT(damaged.size(), 300u);
  for (const auto& [how, bytes] : damaged) {
    SCOPED_TRACE(how);
    disk.names.clear();
    disk.names[name] = std::make_shared<Disk::Inode>(Disk::Inode{bytes, bytes});
    Server server(disk);
    EXPECT_EQ(server.Find(sample), 192);
    EXPECT_FALSE(server.Read(sample));
    EXPECT_TRUE(disk.names.empty());
    EXPECT_EQ(server.Find(sample), 0);
    EXPECT_EQ(server.store().stats().errors, 1);
    EXPECT_EQ(server.memory().open_files(), 0u);
    ASSERT_EQ(server.warnings.size(), 1u);
    EXPECT_THAT(server.warnings[0], testing::StartsWith("reading a snapshot: "));
  }
  std::printf("%zu damaged files\n", damaged.size());
}

// Each call fails in turn: alone, as on a full disk, or with all after it, when the power is lost.
// A new server then finds each snapshot whole or not at all, and all for which Write said ok.
TEST(DiskStoreTest, AFailureOrALossOfPowerAtAnyCall) {
  const std::vector<Sample> samples = {MakeSample(1, 128), MakeSample(2, 192), MakeSample(3, 128)};
  const auto write_all = [&samples](Server& server, std::vector<bool>* stored) {
    for (const Sample& sample : samples) stored->push_back(server.Write(sample));
    const int64_t saved = server.store().stats().saved;
    if (stored->front()) {
      EXPECT_TRUE(server.Write(samples[0]));  // it is there
    }
    EXPECT_EQ(server.store().stats().saved, saved);
  };
  Disk counted;
  {
    Server server(counted);
    std::vector<bool> stored;
    write_all(server, &stored);
  }
  ASSERT_GT(counted.calls, 15);
  int lost = 0, found = 0;
  for (int64_t call = 0; call < counted.calls; ++call) {
    for (const bool power : {false, true}) {
      for (uint64_t seed = 0; seed < (power ? 40 : 1); ++seed) {
        SCOPED_TRACE(testing::Message() << "call " << call << " power " << power << " " << seed);
        Disk disk;
        disk.fail_at = call;
        if (!power) {
          disk.fail_calls = 1;
          disk.error = absl::ResourceExhaustedError("No space left on device");
        }
        std::vector<bool> stored;
        {
          Server server(disk);
          write_all(server, &stored);
          EXPECT_EQ(server.memory().open_files(), 0u);
          if (!power) {
            for (const Sample& sample : samples) {
              EXPECT_EQ(server.Read(sample), server.Find(sample) > 0) << sample.what.tokens[0];
            }
          }
        }
        std::mt19937_64 rng(seed);
        if (power) disk.LosePower(rng);
        Server server(disk);
        for (size_t i = 0; i < samples.size(); ++i) {
          const bool reads = server.Find(samples[i]) > 0 && server.Read(samples[i]);
          EXPECT_TRUE(reads || !stored[i]) << i;
          ++(reads ? found : lost);
        }
        EXPECT_TRUE(server.Write(samples[1]));  // life goes on
        EXPECT_TRUE(server.Read(samples[1]));
      }
    }
  }
  EXPECT_GT(lost, 100);
  EXPECT_GT(found, 100);
}

TEST(DiskStoreTest, TheLeastRecentlyUsedGoForRoom) {
  Disk disk;
  const std::vector<Sample> samples = {MakeSample(1, 128), MakeSample(2, 128), MakeSample(3, 128),
                                       MakeSample(4, 128)};
  int64_t bytes = 0;
  for (size_t i = 0; i < 3; ++i) bytes += 4096 + static_cast<int64_t>(samples[i].image.size());
  {
    Server server(disk, bytes);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(server.Write(samples[i])) << i;
    EXPECT_EQ(server.store().stats().files, 3);
    EXPECT_TRUE(server.Read(samples[0]));
  }
  // The order of use outlives the server.
  Server server(disk, bytes);
  EXPECT_TRUE(server.Write(samples[3]));
  EXPECT_EQ(server.Find(samples[1]), 0);
  EXPECT_GT(server.Find(samples[0]), 0);
  EXPECT_GT(server.Find(samples[3]), 0);
  EXPECT_GE(server.store().stats().removed, 1);
  EXPECT_LE(server.store().stats().bytes, bytes);
  int64_t there = 0;
  for (const auto& [name, inode] : disk.names) there += static_cast<int64_t>(inode->now.size());
  EXPECT_EQ(there, server.store().stats().bytes);
  // A smaller limit holds from the start, for files of other servers, too.
  Server stranger(disk, 5000, 2);
  EXPECT_LE(stranger.store().stats().bytes, 5000);
  // A file larger than the limit is not written.
  EXPECT_TRUE(stranger.Write(samples[0]));
  EXPECT_EQ(stranger.Find(samples[0]), 0);
}

TEST(DiskStoreTest, ClearAlsoTakesWhatIsBeingWritten) {
  Disk disk;
  Server server(disk);
  const Sample old = MakeSample(1, 128), late = MakeSample(2, 128);
  EXPECT_TRUE(server.Write(old));
  DiskStore& store = server.store();
  store.Write(0, late.what);
  store.Read(1, {old.what.cache_salt, old.what.log_tolerance, old.what.tokens});
  store.Clear();
  EXPECT_EQ(server.Find(old), 0);
  EXPECT_EQ(store.stats().files, 0);
  while (store.RunOne()) {
  }
  for (const SnapshotStore::Done& done : store.TakeDone())
    EXPECT_TRUE(!done.read || !done.ok) << done.buffer;
  EXPECT_EQ(server.Find(late), 0);
  store.Clear();
  while (store.RunOne()) {
  }
  EXPECT_TRUE(disk.names.empty());
}

TEST(DiskStoreTest, FailuresAreCountedAndOneOfThemIsTold) {
  Disk disk;
  Server server(disk);
  disk.fail_at = disk.calls;
  disk.error = absl::ResourceExhaustedError("write: No space left on device");
  for (uint64_t i = 0; i < 5; ++i) EXPECT_FALSE(server.Write(MakeSample(i, 128))) << i;
  EXPECT_EQ(server.store().stats().errors, 5);
  EXPECT_EQ(server.warnings,
            std::vector<std::string>{"writing a snapshot: write: No space left on device"});
  disk.fail_at = -1;
  const Sample sample = MakeSample(9, 128);
  EXPECT_TRUE(server.Write(sample));
  server.memory().read_error = absl::UnavailableError("read: Input/output error");
  EXPECT_FALSE(server.Read(sample));
  EXPECT_EQ(server.store().stats().errors, 6);
  EXPECT_EQ(server.Find(sample), 0);
}

TEST(DiskStoreTest, ADirectoryIsMadeAndLocked) {
  const TemporaryDir parent;
  const std::string path = parent.path() + "/cache";
  auto files = OpenDirectory(path);
  ASSERT_TRUE(files.ok()) << files.status();
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
  const absl::Status second = OpenDirectory(path).status();
  EXPECT_EQ(second, absl::InvalidArgumentError(path + ": another server uses this directory"));
  const Sample sample = MakeSample(1, 128);
  {
    Server server(*std::move(files));
    EXPECT_TRUE(server.Write(sample));
    EXPECT_TRUE(server.Read(sample));
  }
  files = OpenDirectory(path);
  ASSERT_TRUE(files.ok()) << files.status();
  Server server(*std::move(files));
  EXPECT_TRUE(server.Read(sample));

  EXPECT_EQ(OpenDirectory(parent.path() + "/no/cache").status(),
            absl::InvalidArgumentError(parent.path() + "/no/cache: No such file or directory"));
  const std::string file = parent.path() + "/file";
  std::ofstream(file) << "text";
  EXPECT_EQ(OpenDirectory(file).status(), absl::InvalidArgumentError(file + ": Not a directory"));
}

TEST(DiskStoreTest, ThreadsWriteReadAndWake) {
  const TemporaryDir dir;
  const Sample sample = MakeSample(1, 640);
  std::vector<Bytes> buffers(2, Bytes(SlotImageBytes(Shape(), 200)));
  DiskStoreOptions options;
  options.format.shape = Shape();
  options.max_bytes = int64_t{1} << 40;
  options.read_threads = 2;
  DiskStore store(*OpenDirectory(dir.path()), {buffers[0], buffers[1]}, options);
  Mutex mutex;
  CondVar woken;
  store.SetWake([&] {
    const MutexLock lock(mutex);
    woken.NotifyOne();
  });
  const auto wait = [&] {
    const MutexLock lock(mutex);
    while (!store.has_done()) woken.Wait(mutex);
    return store.TakeDone().at(0);
  };
  for (int round = 0; round < 20; ++round) {
    std::copy(sample.image.begin(), sample.image.end(), buffers[0].begin());
    store.Write(0, sample.what);
    EXPECT_TRUE(wait().ok);
    store.Read(1, {"s", -10, sample.what.tokens});
    EXPECT_TRUE(wait().ok);
    EXPECT_TRUE(std::equal(sample.image.begin(), sample.image.end(), buffers[1].begin()));
  }
  store.SetWake(nullptr);
}

}  // namespace
}  // namespace fox
