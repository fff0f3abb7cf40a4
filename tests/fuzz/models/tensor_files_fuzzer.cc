// TensorFiles: an index and two shards, a and b. What is accepted is every tensor of the index,
// each as its shard has it, and no other.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tensor_files.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/model_folder.h"

namespace fox {
namespace {

void Fuzz(FuzzInput in) {
  static const ModelFolder folder;
  const std::vector<std::string> files = in.Sections(3);
  folder.Write("model.safetensors.index.json", files[0]);
  folder.Write("a", files[1]);
  folder.Write("b", files[2]);
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(folder.path());
  FOX_CHECK(dir.ok());
  const absl::StatusOr<TensorFiles> tensors = TensorFiles::Open(*dir);
  if (!tensors.ok()) {
    FOX_CHECK(tensors.status().message().find(folder.path()) == std::string::npos);
    return CheckRefusal(tensors.status());
  }
  const nlohmann::json index = nlohmann::json::parse(files[0], nullptr, false).at("weight_map");
  FOX_CHECK(index.size() == tensors->tensors().size());
  size_t in_shards = 0;
  for (const size_t shard : {size_t{1}, size_t{2}}) {
    const std::string& bytes = files[shard];
    const absl::StatusOr<SafetensorsEntries> entries =
        ParseSafetensors({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "shard");
    if (!entries.ok()) continue;  // the index names the other one alone, or none
    for (const auto& [name, entry] : *entries) {
      const auto found = index.find(name);
      if (found == index.end() || found->get<std::string>().back() != "ab"[shard - 1]) continue;
      ++in_shards;
      const SafetensorsEntry& taken = tensors->tensors().at(name);
      FOX_CHECK(taken.shape == entry.shape && taken.dtype_name == entry.dtype_name);
      FOX_CHECK(
          std::equal(taken.data.begin(), taken.data.end(), entry.data.begin(), entry.data.end()));
    }
  }
  FOX_CHECK(in_shards == index.size());
  FOX_CHECK(tensors->CheckUnchanged().ok());
}

}  // namespace
}  // namespace fox

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fox::Fuzz(fox::FuzzInput(data, size));
  return 0;
}
