// TensorFiles: one file, or an index and its shards; see tensor_files.h.
#include "models/checkpoint/tensor_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/checkpoint/json_reader.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kMaxShards = 512;
constexpr JsonLimits kIndexLimits{.max_bytes = kMaxSafetensorsHeader,
                                  .max_depth = 8,
                                  .max_values = kMaxSafetensorsTensors + 1000};

absl::Status IndexError(const std::string& problem) { return InvalidFile(kIndexFile, problem); }

// Tensor name -> shard file name.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const ModelDir& dir) {
  absl::StatusOr<std::string> text = dir.ReadText(kIndexFile, kIndexLimits.max_bytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<Json> index = ReadJson(*text, kIndexLimits, kIndexFile);
  if (!index.ok()) return index.status();
  if (!index->is_object() || !index->contains("weight_map") ||
      !(*index)["weight_map"].is_object()) {
    return IndexError("must be an object with an object weight_map");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : (*index)["weight_map"].items()) {
    if (!shard.is_string()) return IndexError(Quoted(tensor) + " must name a file");
    shard_of[tensor] = shard.get<std::string>();
  }
  return shard_of;
}

// The error of a shard that cannot be opened. `status` does not always name the file.
absl::Status Unopened(const absl::Status& status, const std::string& tensor) {
  return {status.code(), absl::StrCat(kIndexFile, ": the shard of ", Quoted(tensor),
                                      " cannot be opened: ", status.message())};
}

bool AreEqual(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  return a.dtype_name == b.dtype_name && a.shape == b.shape &&
         std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end());
}

}  // namespace

absl::StatusOr<TensorFiles> TensorFiles::Open(const ModelDir& dir) {
  TensorFiles files;
  if (dir.Contains(kSingleFile)) {
    absl::StatusOr<FileDescriptor> fd = dir.OpenFile(kSingleFile);
    if (!fd.ok()) return fd.status();
    absl::StatusOr<SafetensorsEntries> tensors = files.AddFile(*std::move(fd), kSingleFile);
    if (!tensors.ok()) return tensors.status();
    files.tensors_ = *std::move(tensors);
    return files;
  }
  if (!dir.Contains(kIndexFile)) {
    return dir.NoCheckpoint(absl::StrCat("neither ", kSingleFile, " nor ", kIndexFile, " is"));
  }
  const absl::Status status = files.AddShards(dir);
  if (!status.ok()) return status;
  return files;
}

absl::StatusOr<SafetensorsEntries> TensorFiles::AddFile(FileDescriptor fd,
                                                        const std::string& name) {
  absl::StatusOr<MappedFile> file = MappedFile::Map(std::move(fd), name);
  if (!file.ok()) return file.status();
  files_.push_back(*std::move(file));
  return ParseSafetensors(files_.back().bytes(), Printable(name));
}

absl::Status TensorFiles::AddShards(const ModelDir& dir) {
  absl::StatusOr<std::map<std::string, std::string>> shard_of = ReadIndex(dir);
  if (!shard_of.ok()) return shard_of.status();
  std::map<std::string, std::string> some_tensor;  // shard file name -> one of its tensors
  for (const auto& [tensor, shard] : *shard_of) some_tensor.try_emplace(shard, tensor);
  if (some_tensor.size() > kMaxShards) {
    return IndexError(absl::StrCat("more than ", kMaxShards, " shards"));
  }
  for (const auto& [shard, tensor] : some_tensor) {
    absl::StatusOr<FileDescriptor> fd = dir.OpenFile(shard);
    if (!fd.ok()) return Unopened(fd.status(), tensor);
    absl::StatusOr<SafetensorsEntries> entries = AddFile(*std::move(fd), shard);
    if (!entries.ok()) return entries.status();
    for (auto& [name, entry] : *entries) {
      const auto [it, added] = tensors_.try_emplace(name, entry);
      if (added || AreEqual(it->second, entry)) continue;
      return IndexError(absl::StrCat("shard ", Printable(shard), " holds another ", Quoted(name),
                                     " than an earlier shard"));
    }
  }
  FOX_CHECK(files_.size() == some_tensor.size());
  return absl::OkStatus();
}

std::vector<std::span<const std::byte>> TensorFiles::contents() const {
  std::vector<std::span<const std::byte>> contents;
  for (const MappedFile& file : files_) contents.push_back(file.bytes());
  return contents;
}

absl::Status TensorFiles::CheckUnchanged() const {
  for (const MappedFile& file : files_) {
    absl::Status status = file.CheckUnchanged();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace fox
