// TensorFiles: all tensors of a model directory under one set of names, whether they lie in
// model.safetensors or in the shards that model.safetensors.index.json lists. As in transformers,
// an index is only a list of files: every tensor in them counts, and the index is not asked where
// it lies. A tensor that two files hold must be equal in both.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/checkpoint/mapped_file.h"
#include "models/checkpoint/model_dir.h"
#include "models/checkpoint/safetensors.h"

namespace fox {

class TensorFiles {
 public:
  // model.safetensors wins when both it and an index exist, as in the reference loader. NotFound
  // when neither or a shard does not exist, InvalidArgument for everything wrong inside the files.
  // Errors name the file; of a shard that cannot be opened also a tensor that the index has there.
  static absl::StatusOr<TensorFiles> Open(const ModelDir& dir);

  // The data are in mapped files, which live as long as this object.
  const SafetensorsEntries& tensors() const { return tensors_; }

  // The bytes of each file, in the order in which they were opened.
  std::vector<std::span<const std::byte>> contents() const;

  // See MappedFile::CheckUnchanged.
  absl::Status CheckUnchanged() const;

 private:
  absl::StatusOr<SafetensorsEntries> AddFile(FileDescriptor fd, const std::string& name);
  absl::Status AddShards(const ModelDir& dir);

  std::vector<MappedFile> files_;
  SafetensorsEntries tensors_;
};

}  // namespace fox
