// Writes safetensors files for tests: well-formed ones from tensors, malformed ones from any header
// text. Nothing is checked here: checks are the reader's part.
#pragma once

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/models/temporary_dir.h"

namespace fox {

struct TensorSpec {
  std::string dtype;  // as in the file: "BF16"
  std::vector<int64_t> shape;
  std::string bytes;
};
using TensorSpecs = std::map<std::string, TensorSpec>;

// A file with this header text and data, which may be malformed.
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

}  // namespace fox
