// Checkpoint: a model directory opened, checked and mapped. Every tensor that the configuration
// requires is present with its exact shape, and there are no others, so users of this class never
// check again. Tensors are named by their role, which is the same for all layouts of checkpoints.
// Read weights.h next: it turns these host tensors into a backend's weights.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/checkpoint/host_tensor.h"
#include "models/checkpoint/model_config.h"
#include "models/checkpoint/tensor_files.h"

namespace fox {

// D hidden size, Q and KV head_dim times the query and kv heads, H query heads, I intermediate
// size.
struct LayerTensors {
  HostTensor attn_norm;               // [D]
  HostTensor q_proj, k_proj, v_proj;  // [Q, D], [KV, D], [KV, D]
  HostTensor q_bias, k_bias, v_bias;  // [Q], [KV], [KV]; qkv_bias
  HostTensor k_shift_proj;            // [kv_heads, D]; k_shift
  HostTensor v_shift_proj;            // [kv_heads, D]; v_shift
  HostTensor fgate_proj;              // [gates, D]; ForgetGate::kFull
  HostTensor fgate_bias;              // [gates]; all but ForgetGate::kNone
  HostTensor ogate_proj;              // [Q, D]; an output gate
  HostTensor output_norm;             // [Q]; output_norm
  HostTensor q_norm, k_norm;          // [Q], [KV], or [head_dim] when shared; qk_norm
  HostTensor q_cap, k_cap;            // [H], [kv_heads], from 2^-60 to 2^60; qk_norm_cap
  HostTensor sinks;                   // [H], finite; attention_sink
  HostTensor o_proj;                  // [D, Q]
  HostTensor mlp_norm;                // [D]
  std::vector<HostTensor> gate_up;    // one [2I, D] (gate rows first), or [I, D] twice
  HostTensor down_proj;               // [D, I]
};

struct CheckpointOptions {
  bool allow_nonfinite = false;  // false: NaN or infinity in a weight refuses the checkpoint
};

class Checkpoint {
 public:
  // Opens `dir`: config.json, then model.safetensors or the shards of model.safetensors.index.json.
  // Files are resolved beneath `dir` and must be regular. The error (InvalidArgument, NotFound,
  // Unimplemented) is one line that names the tensor, the key or the file, never an absolute path.
  static absl::StatusOr<Checkpoint> Open(const std::string& dir, const CheckpointOptions& options);

  // tie_word_embeddings is false if both matrices are stored and differ.
  const ModelConfig& config() const { return config_; }
  const HostTensor& embeddings() const { return embeddings_; }  // [V, D]
  const HostTensor& final_norm() const { return final_norm_; }  // [D]
  const HostTensor& lm_head() const { return lm_head_; }        // [V, D]; the embeddings when tied
  const std::vector<LayerTensors>& layers() const { return layers_; }

  // The files' bytes, which identify the weights.
  std::vector<std::span<const std::byte>> contents() const { return files_.contents(); }

  // Call after copying the weights; the copy is valid only if this returns ok. InvalidArgument: a
  // file was written to or truncated since Open mapped it (lost pages read as zeros, see
  // mapped_file.h).
  absl::Status CheckUnchanged() const;

 private:
  explicit Checkpoint(TensorFiles files) : files_(std::move(files)) {}
  absl::Status TakeTensors(const SafetensorsEntries& tensors);

  ModelConfig config_;
  HostTensor embeddings_, final_norm_, lm_head_;
  std::vector<LayerTensors> layers_;
  TensorFiles files_;
};

}  // namespace fox
