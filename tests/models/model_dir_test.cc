// Files of a model directory: nothing outside it, nothing but regular files, and truncation of a
// mapped file is an error rather than the end of the process.
#include "models/model_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "models/mapped_file.h"
#include "tests/models/refused.h"
#include "tests/models/safetensors_writer.h"

namespace fox {
namespace {

namespace fs = std::filesystem;

class ModelDirTest : public ::testing::Test {
 protected:
  ModelDirTest() {
    fs::create_directory(temporary_.File("model"));
    fs::create_directory(temporary_.File("model/sub"));
    temporary_.Write("outside", "secret");
    temporary_.Write("model/file", "content");
    temporary_.Write("model/sub/file", "deeper");
  }

  ModelDir Dir() const { return *ModelDir::Open(temporary_.File("model")); }
  void Link(const std::string& target, const std::string& name) const {
    fs::create_symlink(target, temporary_.File("model/" + name));
  }
  void ExpectOpenError(const std::string& name, const std::string& part) const {
    SCOPED_TRACE(name);
    ExpectRefused(Dir().OpenFile(name).status(), part);
    ExpectRefused(Dir().ReadText(name, 100).status(), part);
  }

  TemporaryDir temporary_;
};

TEST_F(ModelDirTest, ReadsFilesAndLinksInside) {
  Link("file", "link");
  Link("sub/../file", "winding");
  EXPECT_EQ(*Dir().ReadText("file", 7), "content");
  EXPECT_EQ(*Dir().ReadText("sub/file", 100), "deeper");
  EXPECT_EQ(*Dir().ReadText("link", 100), "content");
  EXPECT_EQ(*Dir().ReadText("winding", 100), "content");
  ExpectRefused(Dir().ReadText("file", 6).status(), "larger than 6 bytes");
}

TEST_F(ModelDirTest, RefusesToLeaveTheDirectory) {
  Link("../outside", "link_out");
  Link(temporary_.File("outside"), "link_absolute");
  Link(temporary_.File("model/file"), "link_absolute_inside");
  Link("..", "parent");
  ExpectOpenError("../outside", "leaves the model directory");
  ExpectOpenError("sub/../../outside", "leaves the model directory");
  ExpectOpenError(temporary_.File("outside"), "leaves the model directory");
  ExpectOpenError(temporary_.File("model/file"), "leaves the model directory");
  ExpectOpenError("parent/outside", "leaves the model directory");
  ExpectOpenError("link_out", "link_out: is a symbolic link that leaves");
  ExpectOpenError("link_absolute", "is a symbolic link that leaves");
  ExpectOpenError("link_absolute_inside", "is a symbolic link that leaves");
}

TEST_F(ModelDirTest, RefusesWhatIsNotARegularFileWithoutBlocking) {
  ASSERT_EQ(mkfifo(temporary_.File("model/fifo").c_str(), 0600), 0);
  Link("loop", "loop");
  ExpectOpenError("fifo", "not a regular file");
  ExpectOpenError("sub", "not a regular file");
  ExpectOpenError(".", "not a regular file");
  ExpectOpenError("loop", "symbolic link that cannot be followed");
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = temporary_.File("model/socket");
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ExpectOpenError("socket", "not a regular file");
  close(listener);
}

TEST_F(ModelDirTest, MissingFilesAndOddNames) {
  ExpectOpenError("absent", "absent: no such file");
  ExpectOpenError("", "no such file");
  ExpectOpenError(std::string("file\0x", 6), "no such file");
  ExpectOpenError(std::string(5000, 'a'), "cannot be opened");
  EXPECT_TRUE(absl::IsNotFound(ModelDir::Open(temporary_.File("nowhere")).status()));
  ExpectRefused(ModelDir::Open(temporary_.File("outside")).status(), "not a directory");
}

// Where openat2 is missing the fallback accepts less, never more.
TEST_F(ModelDirTest, FallbackWithoutOpenat2) {
  Link("file", "link");
  const FileDescriptor dir(open(temporary_.File("model").c_str(), O_RDONLY | O_DIRECTORY));
  const FileDescriptor file(OpenPlainName(dir.get(), "file"));
  EXPECT_GE(file.get(), 0);
  EXPECT_EQ(OpenPlainName(dir.get(), "link"), -ELOOP);
  EXPECT_EQ(OpenPlainName(dir.get(), "absent"), -ENOENT);
  for (const char* name : {"..", ".", "../outside", "sub/file", "/etc/hostname"}) {
    EXPECT_EQ(OpenPlainName(dir.get(), name), -EXDEV) << name;
  }
}

TEST_F(ModelDirTest, TruncationUnderAMappingReadsZerosAndIsReported) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  temporary_.Write("model/big", std::string(5 * page + 100, 'x'));
  absl::StatusOr<MappedFile> file = MappedFile::Map(*Dir().OpenFile("big"), "big");
  ASSERT_TRUE(file.ok());
  const auto at = [&](size_t i) { return std::to_integer<int>(file->bytes()[i]); };
  EXPECT_EQ(at(5 * page), 'x');
  EXPECT_TRUE(file->CheckUnchanged().ok());
  ASSERT_EQ(truncate(temporary_.File("model/big").c_str(), static_cast<off_t>(page)), 0);
  EXPECT_EQ(at(page - 1), 'x');
  for (size_t i = page; i < file->bytes().size(); i += 512) ASSERT_EQ(at(i), 0) << i;
  ExpectRefused(file->CheckUnchanged(), "big: changed while it was being read");

  // Growing it back does not make the zeros true again.
  temporary_.Write("model/big", std::string(5 * page + 100, 'x'));
  ExpectRefused(file->CheckUnchanged(), "big: changed while it was being read");
}

TEST_F(ModelDirTest, MappingsComeAndGo) {
  for (int i = 0; i < 3000; ++i) {  // more than there are guard slots
    absl::StatusOr<MappedFile> file = MappedFile::Map(*Dir().OpenFile("file"), "file");
    ASSERT_TRUE(file.ok()) << i;
    const MappedFile moved = *std::move(file);
    ASSERT_EQ(moved.bytes().size(), 7u);
  }
  temporary_.Write("model/empty", "");
  absl::StatusOr<MappedFile> empty = MappedFile::Map(*Dir().OpenFile("empty"), "empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->bytes().empty());
}

using ModelDirDeathTest = ModelDirTest;

// The handler swallows nothing that is not about our mappings.
TEST_F(ModelDirDeathTest, OtherBusErrorsStillKill) {
  absl::StatusOr<MappedFile> file = MappedFile::Map(*Dir().OpenFile("file"), "file");
  ASSERT_TRUE(file.ok());
  EXPECT_DEATH(raise(SIGBUS), "");
}

}  // namespace
}  // namespace fox
