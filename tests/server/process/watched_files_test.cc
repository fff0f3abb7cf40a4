// WatchedFiles notices each replaced file once, and looks at most once in an interval.
#include "server/process/watched_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>

#include "tests/engine/eval/run_program.h"

namespace fox {
namespace {

TEST(WatchedFilesTest, AChangeIsSeenOnceAndNotTooSoon) {
  const std::string a = TempPath("a"), b = TempPath("b");
  WriteWhole(a, "1");
  std::remove(b.c_str());
  WatchedFiles files({a, b});
  EXPECT_FALSE(files.Changed(0));
  WriteWhole(a, "22");
  EXPECT_FALSE(files.Changed(0.5 * WatchedFiles::kInterval));
  EXPECT_TRUE(files.Changed(1 * WatchedFiles::kInterval));
  EXPECT_FALSE(files.Changed(2 * WatchedFiles::kInterval));
  WriteWhole(b, "");  // now it exists
  EXPECT_TRUE(files.Changed(3 * WatchedFiles::kInterval));
  std::remove(a.c_str());
  EXPECT_TRUE(files.Changed(4 * WatchedFiles::kInterval));
  EXPECT_FALSE(files.Changed(5 * WatchedFiles::kInterval));
}

// The new file has the old one's length and second, as when Kubernetes or certbot replace files.
TEST(WatchedFilesTest, ARenamedFileAndALinkThatTurnsAreSeen) {
  const std::string link = TempPath("link"), a = TempPath("a"), b = TempPath("b");
  WriteWhole(a, "1");
  WriteWhole(b, "2");
  std::remove(link.c_str());
  ASSERT_EQ(symlink(a.c_str(), link.c_str()), 0);
  WatchedFiles files({link});
  std::remove(link.c_str());
  ASSERT_EQ(symlink(b.c_str(), link.c_str()), 0);
  EXPECT_TRUE(files.Changed(0));
  ASSERT_EQ(std::rename(a.c_str(), b.c_str()), 0);
  EXPECT_TRUE(files.Changed(WatchedFiles::kInterval));
}

TEST(WatchedFilesTest, OnlySmallRegularFilesAreRead) {
  const std::string path = TempPath("file"), fifo = TempPath("fifo");
  WriteWhole(path, std::string("a\0b", 3));
  EXPECT_EQ(ReadSmallFile(path).value(), std::string("a\0b", 3));
  WriteWhole(path, std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(ReadSmallFile(path).status().message(), "has more than 1 MiB");
  std::remove(fifo.c_str());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(ReadSmallFile(fifo).status().message(), "is no regular file");
  EXPECT_EQ(ReadSmallFile(::testing::TempDir()).status().message(), "is no regular file");
  EXPECT_EQ(ReadSmallFile(path + "x").status().message(),
            "cannot be read: No such file or directory");
}

TEST(WatchedFilesTest, FilesThatOthersMayReadAreFound) {
  const std::string path = TempPath("file");
  WriteWhole(path, "");
  chmod(path.c_str(), 0640);
  EXPECT_FALSE(WatchedFiles::ReadableByOthers(path));
  chmod(path.c_str(), 0644);
  EXPECT_TRUE(WatchedFiles::ReadableByOthers(path));
  EXPECT_FALSE(WatchedFiles::ReadableByOthers(path + "x"));
}

}  // namespace
}  // namespace fox
