// TensorFiles: one file, or an index and its shards; see tensor_files.h.
#include "models/tensor_files.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/error_text.h"
#include "models/json_reader.h"

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

// `status` of the shard's file, which does not always name the file.
absl::Status Unopened(const absl::Status& status, const std::string& tensor) {
  return {status.code(), absl::StrCat(kIndexFile, ": the shard of ", Quoted(tensor),
                                      " cannot be opened: ", status.message())};
}

absl::Status NoWeights(const ModelDir& dir) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "checkpoints"}) {
    if (dir.Contains(name)) {
      return absl::NotFoundError(absl::StrCat("model.safetensors is missing, but there is ", name,
                                              ": run ./run convert on this directory first"));
    }
  }
  return absl::NotFoundError(
      "neither model.safetensors nor model.safetensors.index.json is in the model directory");
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
  if (!dir.Contains(kIndexFile)) return NoWeights(dir);
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
  std::map<std::string, SafetensorsEntries> shards;
  for (const auto& [tensor, shard] : *shard_of) {
    auto [it, added] = shards.try_emplace(shard);
    if (added) {
      if (shards.size() > kMaxShards)
        return IndexError(absl::StrCat("more than ", kMaxShards, " shards"));
      absl::StatusOr<FileDescriptor> fd = dir.OpenFile(shard);
      if (!fd.ok()) return Unopened(fd.status(), tensor);
      absl::StatusOr<SafetensorsEntries> entries = AddFile(*std::move(fd), shard);
      if (!entries.ok()) return entries.status();
      it->second = *std::move(entries);
    }
    auto node = it->second.extract(tensor);
    if (node.empty()) {
      return IndexError(absl::StrCat(Quoted(tensor), " is not in its shard ", Printable(shard)));
    }
    tensors_.insert(std::move(node));
  }
  for (const auto& [shard, rest] : shards) {
    if (rest.empty()) continue;
    return IndexError(absl::StrCat("shard ", Printable(shard), " holds ",
                                   Quoted(rest.begin()->first),
                                   ", which the index does not place there"));
  }
  return absl::OkStatus();
}

absl::Status TensorFiles::CheckUnchanged() const {
  for (const MappedFile& file : files_) {
    absl::Status status = file.CheckUnchanged();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace fox
