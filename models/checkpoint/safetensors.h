// The safetensors format: u64 little-endian header length N, N bytes of JSON, then the data.
//
//   header = '{' ( "__metadata__": {string: string} | name: entry ) , ... '}' then spaces
//   entry  = {"dtype": string, "shape": [extent, ...], "data_offsets": [begin, end]}
//
// ParseSafetensors is stricter than the reference implementation. Offsets count from the end of the
// header; sorted, they cover the data exactly, without overlap or hole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/dtype.h"

namespace fox {

inline constexpr uint64_t kMaxSafetensorsHeader = 16 << 20;
inline constexpr size_t kMaxSafetensorsTensors = 100000;
inline constexpr size_t kMaxSafetensorsDims = 8;

struct SafetensorsEntry {
  std::string dtype_name;      // as the file spells it: "BF16", "I64"
  std::optional<DType> dtype;  // nullopt: a valid type that no weight of ours may have
  std::vector<int64_t> shape;  // every extent >= 1; empty: a scalar
  std::span<const std::byte> data;
};

// Tensors by name. Their data are spans of `file`; only its header is read. InvalidArgument errors
// begin with `what`, the file's name.
using SafetensorsEntries = std::map<std::string, SafetensorsEntry>;
absl::StatusOr<SafetensorsEntries> ParseSafetensors(std::span<const std::byte> file,
                                                    const std::string& what);

}  // namespace fox
