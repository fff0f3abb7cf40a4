// A mapping whose file changes under it: an error rather than the end of the process.
#include "models/checkpoint/mapped_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/models/refused.h"
#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() : dir_(*ModelDir::Open(temporary_.path())) {
    temporary_.Write("file", "content");
  }

  TemporaryDir temporary_;
  const ModelDir dir_;
};

TEST_F(MappedFileTest, TruncationUnderAMappingReadsZerosAndIsReported) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  temporary_.Write("big", std::string(5 * page + 100, 'x'));
  absl::StatusOr<MappedFile> file = MappedFile::Map(*dir_.OpenFile("big"), "big");
  ASSERT_TRUE(file.ok());
  const auto at = [&](size_t i) { return std::to_integer<int>(file->bytes()[i]); };
  EXPECT_EQ(at(5 * page), 'x');
  EXPECT_TRUE(file->CheckUnchanged().ok());
  ASSERT_EQ(truncate(temporary_.File("big").c_str(), static_cast<off_t>(page)), 0);
  EXPECT_EQ(at(page - 1), 'x');
  for (size_t i = page; i < file->bytes().size(); i += 512) ASSERT_EQ(at(i), 0) << i;
  ExpectRefused(file->CheckUnchanged(), "big: changed while it was being read");

  // Growing it back does not make the zeros true again.
  temporary_.Write("big", std::string(5 * page + 100, 'x'));
  ExpectRefused(file->CheckUnchanged(), "big: changed while it was being read");
}

TEST_F(MappedFileTest, MappingsComeAndGo) {
  for (int i = 0; i < 3000; ++i) {  // more than there are guard slots
    absl::StatusOr<MappedFile> file = MappedFile::Map(*dir_.OpenFile("file"), "file");
    ASSERT_TRUE(file.ok()) << i;
    const MappedFile moved = *std::move(file);
    ASSERT_EQ(moved.bytes().size(), 7u) << i;
  }
  temporary_.Write("empty", "");
  absl::StatusOr<MappedFile> empty = MappedFile::Map(*dir_.OpenFile("empty"), "empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->bytes().empty());
}

using MappedFileDeathTest = MappedFileTest;

// The handler passes on every SIGBUS that is not about a mapping of MappedFile.
TEST_F(MappedFileDeathTest, OtherBusErrorsStillKill) {
  absl::StatusOr<MappedFile> file = MappedFile::Map(*dir_.OpenFile("file"), "file");
  ASSERT_TRUE(file.ok());
  EXPECT_DEATH(raise(SIGBUS), "");
}

}  // namespace
}  // namespace fox
