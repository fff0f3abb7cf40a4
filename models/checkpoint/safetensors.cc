// ParseSafetensors: length, JSON, each entry by itself, then the entries against each other.
#include "models/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/checkpoint/json_reader.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
static_assert(kLengthBytes == sizeof(uint64_t));
// Per tensor: its object, the type, two arrays, the extents and the two offsets.
constexpr JsonLimits kHeaderLimits{
    .max_bytes = kMaxSafetensorsHeader,
    .max_depth = 8,
    .max_values = kMaxSafetensorsTensors * (6 + kMaxSafetensorsDims) + 1000};

struct ElementType {
  const char* name = nullptr;
  uint64_t bytes = 0;
  std::optional<DType> dtype;
};

constexpr ElementType kElementTypes[] = {
    {"F64", 8, DType::kF64}, {"F32", 4, DType::kF32},
    {"F16", 2, DType::kF16}, {"BF16", 2, DType::kBF16},
    {"I64", 8, {}},          {"U64", 8, {}},
    {"I32", 4, {}},          {"U32", 4, {}},
    {"I16", 2, {}},          {"U16", 2, {}},
    {"I8", 1, {}},           {"U8", 1, {}},
    {"BOOL", 1, {}},         {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
};

const ElementType* FindElementType(const std::string& name) {
  for (const ElementType& type : kElementTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

// The entry of one tensor, before its bytes are placed.
struct ParsedEntry {
  SafetensorsEntry entry;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Fills shape and returns the number of bytes it needs in `bytes`; an error text, or empty.
std::string ParseShape(const Json& shape, uint64_t element_bytes, SafetensorsEntry& entry,
                       uint64_t& bytes) {
  if (!shape.is_array()) return "shape must be an array";
  if (shape.size() > kMaxSafetensorsDims) {
    return absl::StrCat("shape has more than ", kMaxSafetensorsDims, " dimensions");
  }
  FOX_CHECK(element_bytes > 0);
  constexpr auto kMaxBytes = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  bytes = element_bytes;
  for (const Json& extent : shape) {
    if (!extent.is_number_unsigned()) return "shape holds something other than whole numbers";
    const auto value = extent.get<uint64_t>();
    if (value == 0) return "shape has an extent of zero";
    if (value > kMaxBytes / bytes) return "shape overflows";
    bytes *= value;
    entry.shape.push_back(static_cast<int64_t>(value));
  }
  return "";
}

// An error text, or empty.
std::string ParseEntry(const Json& json, uint64_t data_size, ParsedEntry& parsed) {
  if (!json.is_object()) return "must be an object";
  if (json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return "must have exactly the keys dtype, shape and data_offsets";
  }
  if (!json["dtype"].is_string()) return "dtype must be a string";
  parsed.entry.dtype_name = json["dtype"].get<std::string>();
  const ElementType* type = FindElementType(parsed.entry.dtype_name);
  if (type == nullptr) return "unknown dtype " + Quoted(parsed.entry.dtype_name);
  parsed.entry.dtype = type->dtype;

  uint64_t bytes = 0;
  std::string problem = ParseShape(json["shape"], type->bytes, parsed.entry, bytes);
  if (!problem.empty()) return problem;

  const Json& offsets = json["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return "data_offsets must be two whole numbers";
  }
  parsed.begin = offsets[0].get<uint64_t>();
  parsed.end = offsets[1].get<uint64_t>();
  if (parsed.begin > parsed.end) return "data_offsets end before they begin";
  if (parsed.end > data_size) return "data_offsets reach past the end of the file";
  if (parsed.end - parsed.begin != bytes) {
    return absl::StrCat("has ", parsed.end - parsed.begin, " bytes, but its shape and dtype need ",
                        bytes);
  }
  return "";
}

// An error text, or empty.
std::string CheckMetadata(const Json& metadata) {
  if (!metadata.is_object()) return "__metadata__ must be an object";
  for (const auto& value : metadata) {
    if (!value.is_string()) return "__metadata__ must hold strings only";
  }
  return "";
}

// Every byte of the data belongs to exactly one tensor. An error text, or empty.
std::string CheckCoverage(std::vector<std::pair<uint64_t, uint64_t>>& ranges, uint64_t data_size) {
  std::sort(ranges.begin(), ranges.end());
  uint64_t reached = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin < reached) return "tensors overlap";
    if (begin > reached) return "there is a hole between tensors";
    reached = end;
  }
  if (reached != data_size) return "there are bytes after the last tensor";
  return "";
}

}  // namespace

absl::StatusOr<SafetensorsEntries> ParseSafetensors(std::span<const std::byte> file,
                                                    const std::string& what) {
  if (file.size() < kLengthBytes) return InvalidFile(what, "too short for a safetensors file");
  uint64_t length = 0;
  static_assert(std::endian::native == std::endian::little, "as the file");
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxSafetensorsHeader) {
    return InvalidFile(what, absl::StrCat("header longer than ", kMaxSafetensorsHeader, " bytes"));
  }
  if (length > file.size() - kLengthBytes) {
    return InvalidFile(what, "header reaches past the end of the file");
  }
  const std::span<const std::byte> data = file.subspan(kLengthBytes + length);
  const std::string text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  // The format demands it; it also keeps a byte-order mark out.
  if (text.empty() || text[0] != '{') return InvalidFile(what, "header does not begin with {");

  absl::StatusOr<Json> header = ReadJson(text, kHeaderLimits, what + ": header");
  if (!header.ok()) return header.status();
  if (header->size() > kMaxSafetensorsTensors) {
    return InvalidFile(what, absl::StrCat("more than ", kMaxSafetensorsTensors, " tensors"));
  }
  SafetensorsEntries entries;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, json] : header->items()) {
    if (name == "__metadata__") {
      const std::string problem = CheckMetadata(json);
      if (!problem.empty()) return InvalidFile(what, problem);
      continue;
    }
    ParsedEntry parsed;
    const std::string problem = ParseEntry(json, data.size(), parsed);
    if (!problem.empty()) return InvalidFile(what, absl::StrCat(Quoted(name), ": ", problem));
    FOX_CHECK(parsed.begin <= parsed.end && parsed.end <= data.size());
    parsed.entry.data = data.subspan(parsed.begin, parsed.end - parsed.begin);
    ranges.emplace_back(parsed.begin, parsed.end);
    entries.emplace(name, std::move(parsed.entry));
  }
  const std::string problem = CheckCoverage(ranges, data.size());
  if (!problem.empty()) return InvalidFile(what, problem);
  FOX_CHECK(entries.size() == ranges.size());
  return entries;
}

}  // namespace fox
