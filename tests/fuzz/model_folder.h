// ModelFolder: a folder in memory (/dev/shm) for targets whose subject opens files by their names.
// It lives as long as the process; each input writes only files that differ from the input before.
// Not thread-safe.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "kernels/core/check.h"

namespace fox {

class ModelFolder {
 public:
  ModelFolder() {
    const bool in_memory = access("/dev/shm", W_OK) == 0;
    path_ = std::string(in_memory ? "/dev/shm" : "/tmp") + "/fox-fuzz-XXXXXX";
    FOX_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~ModelFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::string& path() const { return path_; }

  void Write(const std::string& name, const std::string& content) {
    const auto [it, is_new] = files_.try_emplace(name, content);
    if (!is_new && it->second == content) return;
    if (is_new) std::filesystem::remove(path_ + "/" + name);  // it may have been a folder
    it->second = content;
    std::FILE* file = std::fopen((path_ + "/" + name).c_str(), "wb");
    FOX_CHECK(file != nullptr);
    FOX_CHECK(std::fwrite(content.data(), 1, content.size(), file) == content.size());
    FOX_CHECK(std::fclose(file) == 0);
  }
  void MakeFolder(const std::string& name) {
    Remove(name);
    std::filesystem::create_directory(path_ + "/" + name);
  }
  // Removes the file or folder of this name, if there is one.
  void Remove(const std::string& name) {
    files_.erase(name);
    std::filesystem::remove(path_ + "/" + name);
  }

 private:
  std::string path_;
  std::map<std::string, std::string> files_;  // as they were written last
};

}  // namespace fox
