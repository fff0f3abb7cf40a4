// Writes safetensors files and model directories for tests: well-formed ones from tensors, and
// malformed ones from any header text. Nothing is checked here; that is the reader's part.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace fox {

struct TensorSpec {
  std::string dtype;  // as in the file: "BF16"
  std::vector<int64_t> shape;
  std::string bytes;
};
using TensorSpecs = std::map<std::string, TensorSpec>;

// The file with this header text and data, whatever they hold.
inline std::string RawSafetensors(const std::string& header, const std::string& data) {
  std::string file;
  for (int shift = 0; shift < 64; shift += 8) {
    file += static_cast<char>(static_cast<uint64_t>(header.size()) >> shift & 0xff);
  }
  return file + header + data;
}

inline std::string SafetensorsBytes(const TensorSpecs& tensors) {
  std::ostringstream header;
  std::string data;
  header << R"({"__metadata__":{"format":"pt"})";
  for (const auto& [name, tensor] : tensors) {
    header << ",\"" << name << R"(":{"dtype":")" << tensor.dtype << R"(","shape":[)";
    for (size_t i = 0; i < tensor.shape.size(); ++i) header << (i ? "," : "") << tensor.shape[i];
    header << R"(],"data_offsets":[)" << data.size() << "," << data.size() + tensor.bytes.size()
           << "]}";
    data += tensor.bytes;
  }
  header << "}";
  return RawSafetensors(header.str(), data);
}

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
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(File(name), std::ios::binary) << content;
  }

 private:
  std::string path_;
};

inline std::string FileContent(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace fox
