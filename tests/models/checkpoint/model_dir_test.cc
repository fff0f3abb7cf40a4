// Files of a model directory: only regular files are opened, and none outside the directory.
#include "models/checkpoint/model_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "models/checkpoint/error_text.h"
#include "tests/models/refused.h"
#include "tests/models/temporary_dir.h"

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
  ExpectOpenError("link_out", "hf download REPO --local-dir DIR");
}

// The cache that `hf download` writes.
class HuggingFaceCacheTest : public ModelDirTest {
 protected:
  HuggingFaceCacheTest() {
    const std::string repository = temporary_.File("models--fla-hub--fox");
    snapshot_ = repository + "/snapshots/0123abc";
    fs::create_directories(snapshot_);
    fs::create_directories(repository + "/blobs");
    temporary_.Write("models--fla-hub--fox/blobs/5678", "content");
    temporary_.Write("models--fla-hub--fox/refs", "secret");
    for (const auto& [target, name] :
         std::vector<std::pair<std::string, std::string>>{{"../../blobs/5678", "config.json"},
                                                          {"../../blobs/absent", "absent"},
                                                          {"../../blobs/../refs", "refs"},
                                                          {"../../refs", "refs_too"},
                                                          {"../../blobs", "folder"},
                                                          {"../../../outside", "outside"},
                                                          {"../../blobs/stolen", "stolen"},
                                                          {"loop", "loop"}}) {
      fs::create_symlink(target, snapshot_ + "/" + name);
    }
    fs::create_symlink(temporary_.File("outside"), repository + "/blobs/stolen");
  }

  std::string snapshot_;
};

TEST_F(HuggingFaceCacheTest, LinksToBlobsAreRead) {
  EXPECT_EQ(*ModelDir::Open(snapshot_)->ReadText("config.json", 100), "content");
  // By another name of the same directory.
  fs::create_directory_symlink(snapshot_, temporary_.File("mine"));
  EXPECT_EQ(*ModelDir::Open(temporary_.File("mine"))->ReadText("config.json", 100), "content");
}

TEST_F(HuggingFaceCacheTest, OtherLinksAreRefused) {
  const ModelDir dir = *ModelDir::Open(snapshot_);
  for (const auto& [name, part] : std::vector<std::pair<std::string, std::string>>{
           {"absent", "absent: no such file"},
           {"refs", "is a symbolic link that leaves"},
           {"refs_too", "is a symbolic link that leaves"},
           {"folder", "is a symbolic link that leaves"},
           {"outside", "is a symbolic link that leaves"},
           {"stolen", "is a symbolic link that cannot be followed"},
           {"loop", "is a symbolic link that cannot be followed"},
           {"../../blobs/5678", "a file name leaves the model directory"}}) {
    SCOPED_TRACE(name);
    ExpectRefused(dir.ReadText(name, 100).status(), part);
  }
  // Such links are refused in a directory that is not a cache.
  fs::rename(temporary_.File("models--fla-hub--fox"), temporary_.File("other"));
  ExpectRefused(
      ModelDir::Open(temporary_.File("other/snapshots/0123abc"))->OpenFile("config.json").status(),
      "is a symbolic link that leaves");
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
}

TEST_F(ModelDirTest, LfsPointersAreNamed) {
  temporary_.Write("model/pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  ExpectOpenError("pointer", "pointer: is a Git LFS pointer, not the file itself: git lfs pull");
}

TEST_F(ModelDirTest, DirectoriesThatAreNone) {
  const std::string nowhere = temporary_.File("nowhere");
  const absl::Status missing = ModelDir::Open(nowhere).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message(), Printable(nowhere) + ": the model directory does not exist");
  EXPECT_EQ(ModelDir::Open(temporary_.File("outside")).status().message(),
            Printable(temporary_.File("outside")) + ": the model path is not a directory");
  // Paths that have the form of a repository's name, and paths that have not.
  const std::string hint = "hf download ";
  for (const char* id : {"fla-hub/fox-1.3B", "no/such"}) {
    EXPECT_NE(ModelDir::Open(id).status().message().find(hint + id), std::string::npos) << id;
  }
  for (const char* path : {"no-such", "./no-such", "a/b/c", "no-such/"}) {
    EXPECT_EQ(ModelDir::Open(path).status().message().find(hint), std::string::npos) << path;
  }
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
