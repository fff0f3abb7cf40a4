// RoPE in a config.json of transformers: its base, and the scaling of its frequencies.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "models/checkpoint/json_reader.h"

namespace fox {

// Scaling of RoPE's frequencies. A share of each frequency is kept and the rest divided by
// `factor`; the share goes from 0 at x = `low` to 1 at x = `high` and is constant beyond. x is the
// number of turns in `context` positions (llama3) or, `by_number`, the frequency's number (yarn;
// there `high` is below `low`). With the defaults every frequency is divided (linear scaling).
struct RopeScaling {
  double factor = 1;
  double low = 0, high = 1;
  int64_t context = 0;
  bool by_number = false;
  double attention_factor = 1;  // of cosines and sines, so logits grow by its square (yarn)
};

// Reads RoPE's parameters as transformers 5 does. rope_scaling, the old name of rope_parameters,
// wins unless it is empty. The base may be in this object or in config.json. Without a type there
// is no scaling. `longest`: max_position_embeddings, if any; then the longest sequence after
// scaling. Errors (InvalidArgument, Unimplemented) name the key.
absl::Status ReadRope(KeyReader& keys, int head_dim, double& base, RopeScaling& scaling,
                      std::optional<int64_t>& longest);

}  // namespace fox
