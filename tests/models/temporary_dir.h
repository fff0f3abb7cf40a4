// Folders of files for tests of model directories, and the repository's own files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace fox {

// A folder that disappears with the object.
class TemporaryDir {
 public:
  TemporaryDir() {
    std::string pattern = ::testing::TempDir() + "/fox-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDir(const TemporaryDir&) = delete;
  TemporaryDir& operator=(const TemporaryDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  const TemporaryDir& Write(const std::string& name, const std::string& content) const {
    std::ofstream(File(name), std::ios::binary) << content;
    return *this;
  }

 private:
  std::string path_;
};

inline std::string FileContent(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string RepositoryFile(const std::string& name) {
  return FileContent(std::string(FOX_SOURCE_DIR) + "/" + name);
}

}  // namespace fox
