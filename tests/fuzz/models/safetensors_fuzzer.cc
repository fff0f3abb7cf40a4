// ParseSafetensors: an accepted file satisfies the format's definition, which is checked here from
// the header's text, and its tensors read back the same after they were written again.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

using Json = nlohmann::json;

std::span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

uint64_t ElementBytes(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  return 1;
}

// Checks that the claims of the header hold and that the entries agree with them.
void CheckHeader(std::span<const std::byte> file, const SafetensorsEntries& entries) {
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  const char* text = reinterpret_cast<const char*>(file.data()) + 8;
  const Json header = Json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
  FOX_CHECK(header.is_object());
  FOX_CHECK(header.size() - header.count("__metadata__") == entries.size());
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : entries) {
    const Json& json = header.at(name);
    FOX_CHECK(json.at("dtype") == entry.dtype_name && json.at("shape") == Json(entry.shape));
    const auto begin = json.at("data_offsets").at(0).get<uint64_t>();
    FOX_CHECK(entry.data.data() == file.data() + 8 + length + begin);
    FOX_CHECK(begin + entry.data.size() == json.at("data_offsets").at(1).get<uint64_t>());
    __extension__ unsigned __int128 bytes = ElementBytes(entry.dtype_name);
    for (const int64_t extent : entry.shape) {
      FOX_CHECK(extent >= 1);
      bytes *= static_cast<uint64_t>(extent);
    }
    FOX_CHECK(bytes == entry.data.size());
    ranges.emplace_back(begin, begin + entry.data.size());
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t reached = 0;
  for (const auto& [begin, end] : ranges) {
    FOX_CHECK(begin == reached);
    reached = end;
  }
  FOX_CHECK(8 + length + reached == file.size());
}

std::string Written(const SafetensorsEntries& entries) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, entry] : entries) {
    header[name] = {{"dtype", entry.dtype_name},
                    {"shape", entry.shape},
                    {"data_offsets", {data.size(), data.size() + entry.data.size()}}};
    data.append(reinterpret_cast<const char*>(entry.data.data()), entry.data.size());
  }
  const std::string text = header.dump();
  std::string out;
  for (size_t i = 0; i < 8; ++i) out.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  return out + text + data;
}

}  // namespace

FUZZ_TEST(safetensors) {
  const std::string bytes = in.Rest();
  const std::span<const std::byte> file = BytesOf(bytes);
  const absl::StatusOr<SafetensorsEntries> entries = ParseSafetensors(file, "model.safetensors");
  if (!entries.ok()) return CheckRefusal(entries.status());
  CheckHeader(file, *entries);
  const std::string written = Written(*entries);
  const absl::StatusOr<SafetensorsEntries> again = ParseSafetensors(BytesOf(written), "written");
  FOX_CHECK(again.ok() && again->size() == entries->size());
  for (const auto& [name, entry] : *again) {
    const SafetensorsEntry& first = entries->at(name);
    FOX_CHECK(entry.shape == first.shape && entry.dtype == first.dtype);
    FOX_CHECK(
        std::equal(entry.data.begin(), entry.data.end(), first.data.begin(), first.data.end()));
  }
}

}  // namespace fox
