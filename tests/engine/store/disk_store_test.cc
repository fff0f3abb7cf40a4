// DiskStore: the next server finds a snapshot that was written, bit for bit or not at all: after a
// failure or a loss of power at any call, beside damaged and foreign files, and within its limit.
#include "engine/store/disk_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/engine/store/disk_store_fixture.h"
#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

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
  const double seconds = server.store().stats().read_seconds;
  EXPECT_GT(seconds, 0);
  EXPECT_FALSE(server.Read(whole));
  EXPECT_EQ(server.store().stats().read, 3);
  EXPECT_EQ(server.store().stats().read_seconds, seconds);  // a failed read adds no time
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
    add("its first bytes: " + std::to_string(size), Bytes(whole.data(), whole.data() + size));
    Bytes zeros = whole;
    std::fill(zeros.data() + size, zeros.data() + zeros.size(), std::byte{});
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
  store.Clear("");
  EXPECT_EQ(server.Find(old), 0);
  while (store.RunOne()) {
  }
  EXPECT_EQ(store.stats().files, 0);
  for (const SnapshotStore::Done& done : store.TakeDone())
    EXPECT_TRUE(!done.read || !done.ok) << done.buffer;
  EXPECT_EQ(server.Find(late), 0);
  store.Clear("");
  while (store.RunOne()) {
  }
  EXPECT_TRUE(disk.names.empty());
}

// Names as sha256sum prints them, of s, t and u.
const char* const kS = "043a718774c572bd";
const char* const kT = "e3b98a4da31a127d";
const char* const kU = "0bfe935e70c321c7";

std::string Listed(const DiskStore& store, const std::string& after = "", size_t most = 100) {
  std::string out;
  for (const StoredNamespace& of : store.List(after, most)) {
    out += of.name + " " + std::to_string(of.files) + " " + std::to_string(of.bytes) + "\n";
  }
  return out;
}

// A namespace has all tolerances of its salt, and files of other servers.
TEST(DiskStoreTest, ANamespaceIsListedAndCleared) {
  Disk disk;
  const Sample s = MakeSample(1, 128), deep = MakeSample(2, 128, "s", -20),
               t = MakeSample(3, 192, "t"), u = MakeSample(4, 64, "u");
  const auto line = [](const std::string& name, const std::vector<Sample>& samples) {
    size_t bytes = 0;
    for (const Sample& sample : samples) bytes += 4096 + sample.image.size();
    return name + " " + std::to_string(samples.size()) + " " + std::to_string(bytes) + "\n";
  };
  EXPECT_TRUE(Server(disk, int64_t{1} << 40, /*identity=*/2).Write(s));
  disk.names["name-of-no-server.snapshot"] = std::make_shared<Disk::Inode>();
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted);
    Server server(disk);
    for (const Sample* sample : {&s, &deep, &t, &u}) {
      EXPECT_EQ(server.Find(*sample) > 0, restarted) << sample->what.tokens.size();
      EXPECT_TRUE(server.Write(*sample)) << sample->what.tokens.size();
    }
    EXPECT_EQ(Listed(server.store()), line(kS, {s, deep, s}) + line(kU, {u}) + line(kT, {t}));
    EXPECT_EQ(Listed(server.store(), "", 1), line(kS, {s, deep, s}));
    EXPECT_EQ(Listed(server.store(), kU), line(kT, {t}));
    EXPECT_EQ(Listed(server.store(), kT), "");
  }
  Server server(disk);
  EXPECT_EQ(server.store().stats().files, 6);
  server.store().Clear(kS);
  server.store().Clear("0123456789abcdef");  // it has no files
  EXPECT_EQ(server.Find(s), 0);
  EXPECT_TRUE(server.store().RunOne());
  EXPECT_FALSE(server.store().RunOne());
  EXPECT_EQ(Listed(server.store()), line(kU, {u}) + line(kT, {t}));
  EXPECT_EQ(disk.names.size(), 3u);
  EXPECT_TRUE(!server.Read(s) && !server.Read(deep));
  EXPECT_TRUE(server.Read(t) && server.Read(u));
  EXPECT_EQ(server.store().stats().removed, 0);  // not for room
}

// The index is walked in parts; each file is met.
TEST(DiskStoreTest, ManyFilesAreCleared) {
  Disk disk;
  for (int i = 0; i < 5000; ++i) {
    const std::string key = std::to_string(100000 + i) + std::string(26, '0');
    disk.names[std::string(16, '0') + "-" + (i % 2 == 0 ? kS : kT) + "-64-" + key + ".snapshot"] =
        std::make_shared<Disk::Inode>();
  }
  Server server(disk);
  EXPECT_EQ(Listed(server.store()), std::string(kS) + " 2500 0\n" + kT + " 2500 0\n");
  server.store().Clear(kT);
  EXPECT_TRUE(server.store().RunOne());
  EXPECT_EQ(Listed(server.store()), std::string(kS) + " 2500 0\n");
  EXPECT_EQ(disk.names.size(), 2500u);
  server.store().Clear("");
  EXPECT_TRUE(server.store().RunOne());
  EXPECT_EQ(Listed(server.store()), "");
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
    {
      const MutexLock lock(mutex);
      while (!store.has_done()) woken.Wait(mutex);
    }
    return store.TakeDone().at(0);
  };
  std::atomic<bool> stops{false};
  std::thread administrator([&] {
    while (!stops) EXPECT_LE(store.List("", 10).size(), 1u) << store.stats().files;
  });
  for (int round = 0; round < 20; ++round) {
    std::copy(sample.image.begin(), sample.image.end(), buffers[0].begin());
    store.Write(0, sample.what);
    EXPECT_TRUE(wait().ok);
    store.Read(1, {"s", -10, sample.what.tokens});
    EXPECT_TRUE(wait().ok);
    EXPECT_TRUE(std::equal(sample.image.begin(), sample.image.end(), buffers[1].begin()));
  }
  store.Clear("");
  while (store.stats().files > 0) std::this_thread::yield();
  stops = true;
  administrator.join();
  store.SetWake(nullptr);
}

}  // namespace
}  // namespace fox
