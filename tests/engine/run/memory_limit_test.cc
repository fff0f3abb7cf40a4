// MemoryLimit: the limit that counts, in a tree of files like the kernel's.
#include "engine/run/memory_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

namespace fox {
namespace {

constexpr int64_t kGib = 1 << 30;

class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() : root_(::testing::TempDir() + "/memory_limit_test") {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:       67108864 kB\nMemAvailable:   33554432 kB\n");
  }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void WriteGroup(const std::string& path, const std::string& most, int64_t used, int64_t cache) {
    Write(path + "/memory.max", most + "\n");
    Write(path + "/memory.current", std::to_string(used) + "\n");
    Write(path + "/memory.stat", "anon 1\ninactive_file " + std::to_string(cache) + "\n");
  }

  const std::string root_;
};

TEST_F(MemoryLimitTest, TheMachineAlone) {
  EXPECT_EQ(AvailableMemory(root_).bytes, 32 * kGib);
  EXPECT_EQ(AvailableMemory(root_).source, "MemAvailable");
  EXPECT_EQ(AvailableMemory(root_ + "/nothing").bytes, 4 * kGib);
}

TEST_F(MemoryLimitTest, AContainerOfVersion2) {
  Write("/proc/self/cgroup", "0::/\n");
  WriteGroup("/sys/fs/cgroup", std::to_string(4 * kGib), kGib, kGib / 4);
  EXPECT_EQ(AvailableMemory(root_).bytes, 4 * kGib - kGib + kGib / 4);
  EXPECT_EQ(AvailableMemory(root_).source, "the control group's memory.max");
  WriteGroup("/sys/fs/cgroup", "max", kGib, 0);
  EXPECT_EQ(AvailableMemory(root_).bytes, 32 * kGib);
  Write("/sys/fs/cgroup/memory.high", std::to_string(3 * kGib));
  EXPECT_EQ(AvailableMemory(root_).bytes, 2 * kGib);
}

TEST_F(MemoryLimitTest, EveryGroupAboveCounts) {
  Write("/proc/self/cgroup", "0::/pods/one/leaf\n");
  WriteGroup("/sys/fs/cgroup/pods/one/leaf", std::to_string(8 * kGib), 0, 0);
  WriteGroup("/sys/fs/cgroup/pods/one", "max", 0, 0);
  WriteGroup("/sys/fs/cgroup/pods", std::to_string(2 * kGib), kGib, 0);
  EXPECT_EQ(AvailableMemory(root_).bytes, kGib);
  WriteGroup("/sys/fs/cgroup/pods", std::to_string(2 * kGib), 3 * kGib, 0);
  EXPECT_EQ(AvailableMemory(root_).bytes, 0);
}

// The host's path of a container is not visible inside; its group is the mount's top.
TEST_F(MemoryLimitTest, AContainerOfVersion1) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n0::/system\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(4 * kGib) + "\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(kGib) + "\n");
  Write("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 4096\n");
  EXPECT_EQ(AvailableMemory(root_).bytes, 3 * kGib + 4096);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(AvailableMemory(root_).bytes, 32 * kGib);
}

TEST_F(MemoryLimitTest, TheAddressSpace) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  Write("/proc/self/statm", "1000 500 200 1 0 100 0\n");
  rlimit lower = before;
  lower.rlim_cur = static_cast<rlim_t>(int64_t{24} << 30);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &lower), 0);
  const MemoryLimit limit = AvailableMemory(root_);
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(limit.bytes, 24 * kGib - 1000 * 4096 - 3 * kGib / 4);
  EXPECT_EQ(limit.source, "RLIMIT_AS");
}

TEST_F(MemoryLimitTest, AReserveIsLeftToOtherParts) {
  const MemoryLimit limit = WithReserve({800 << 20, "a test"}, 300 << 20, "calls");
  EXPECT_EQ(limit.bytes, 500 << 20);
  EXPECT_EQ(limit.source, "a test, beside 300 MiB for calls,");
  EXPECT_EQ(WithReserve({800 << 20, "a test"}, 900 << 20, "calls").bytes, 0);
  EXPECT_EQ(WithReserve({800 << 20, "a test"}, 0, "calls").source, "a test");
}

}  // namespace
}  // namespace fox
