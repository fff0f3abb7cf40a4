// TensorFiles: an index and two shards, a and b; with an odd first byte, a is the single file of a
// checkpoint. An index is a list of files, as in transformers: the result has all tensors of the
// files that it names, each as in its shards, and no others.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoint/tensor_files.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/model_folder.h"

namespace fox {
namespace {

absl::StatusOr<SafetensorsEntries> Entries(const std::string& bytes) {
  return ParseSafetensors({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "file");
}

void CheckSame(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  FOX_CHECK(a.shape == b.shape && a.dtype_name == b.dtype_name);
  FOX_CHECK(std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end()));
}

void CheckShards(const std::vector<std::string>& files, const TensorFiles& tensors) {
  const nlohmann::json index = nlohmann::json::parse(files[0], nullptr, false).at("weight_map");
  std::set<std::string> in_shards;
  for (const size_t shard : {size_t{1}, size_t{2}}) {
    const absl::StatusOr<SafetensorsEntries> entries = Entries(files[shard]);
    const char last = "ab"[shard - 1];  // of its name, however that is written
    const bool named = std::any_of(index.begin(), index.end(), [last](const nlohmann::json& name) {
      return name.get<std::string>().back() == last;
    });
    if (!named) continue;
    FOX_CHECK(entries.ok());
    for (const auto& [name, entry] : *entries) {
      in_shards.insert(name);
      CheckSame(tensors.tensors().at(name), entry);
    }
  }
  FOX_CHECK(in_shards.size() == tensors.tensors().size());
}

constexpr char kIndex[] = "model.safetensors.index.json", kSingle[] = "model.safetensors";

// Bits of the first byte. 1: the single file; 2: no index; 4: files of another program; 8 and 16: a
// folder instead of the single file, instead of the index.
void WriteFolder(ModelFolder& folder, size_t form, const std::vector<std::string>& files) {
  const auto place = [&](const char* name, bool file, bool directory, const std::string& content) {
    if (!file || directory) folder.Remove(name);
    if (directory) {
      folder.MakeFolder(name);
    } else if (file) {
      folder.Write(name, content);
    }
  };
  folder.Write("a", files[1]);
  folder.Write("b", files[2]);
  place(kIndex, (form & 2) == 0, (form & 16) != 0, files[0]);
  place("pytorch_model.bin", (form & 4) != 0, false, "");
  place(kSingle, (form & 1) != 0, (form & 8) != 0, files[1]);
}

}  // namespace

FUZZ_TEST(tensor_files) {
  static ModelFolder folder;
  const size_t form = in.Below(32);
  const std::vector<std::string> files = in.Sections(3);
  WriteFolder(folder, form, files);
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(folder.path());
  FOX_CHECK(dir.ok());
  const absl::StatusOr<TensorFiles> tensors = TensorFiles::Open(*dir);
  if (!tensors.ok()) {
    FOX_CHECK(tensors.status().message().find(folder.path()) == std::string::npos);
    return CheckRefusal(tensors.status());
  }
  // A folder is not loaded, and there must be one of the two files.
  FOX_CHECK((form & 8) == 0 && ((form & 1) != 0 || (form & 18) == 0));
  FOX_CHECK(tensors->CheckUnchanged().ok());
  if ((form & 1) == 0) return CheckShards(files, *tensors);
  const absl::StatusOr<SafetensorsEntries> entries = Entries(files[1]);
  FOX_CHECK(entries.ok() && entries->size() == tensors->tensors().size());
  for (const auto& [name, entry] : *entries) CheckSame(tensors->tensors().at(name), entry);
  folder.Write(kSingle, "");
  FOX_CHECK(!tensors->CheckUnchanged().ok());
}

}  // namespace fox
