// Files of a model directory: nothing outside it, and nothing but regular files.
#include "models/model_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

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

}  // namespace
}  // namespace fox
