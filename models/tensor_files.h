// TensorFiles: all tensors of a model directory under one set of names, whether they lie in
// model.safetensors or in the shards that model.safetensors.index.json lists. The index and the
// shards agree exactly: each tensor is in the one shard that the index names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/mapped_file.h"
#include "models/model_dir.h"
#include "models/safetensors.h"

namespace fox {

class TensorFiles {
 public:
  // model.safetensors wins when both it and an index exist, as in the reference loader. NotFound
  // when neither exists, InvalidArgument for everything wrong inside the files.
  static absl::StatusOr<TensorFiles> Open(const ModelDir& dir);

  // The data lies in the mappings, which live as long as this object.
  const SafetensorsEntries& tensors() const { return tensors_; }

  // See MappedFile::CheckUnchanged.
  absl::Status CheckUnchanged() const;

 private:
  absl::StatusOr<SafetensorsEntries> AddFile(const ModelDir& dir, const std::string& name);
  absl::Status AddShards(const ModelDir& dir);

  std::vector<MappedFile> files_;
  SafetensorsEntries tensors_;
};

}  // namespace fox
