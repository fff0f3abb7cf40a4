// TextTokens: a text file as token ids, in the form that a model was trained on. Documents are
// split at a line that holds a single zero byte; each is encoded on its own and wrapped as bos ...
// eos. fox-eval perplexity, fox-eval acp and fox-bench feed these ids to a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/checkpoint/model_config.h"

namespace fox {

struct TextTokens {
  std::vector<int32_t> ids;
  int64_t bytes = 0;      // length of the encoded documents, without separators
  int64_t documents = 0;  // empty ones are not counted
};

// Encodes whole documents until at least `enough` tokens are there (-1: all). bos and eos come from
// the tokenizer, else from the config; where neither has one, none is written. Errors name the
// file: NotFound, FailedPrecondition (the model has no tokenizer), InvalidArgument (not UTF-8).
absl::StatusOr<TextTokens> EncodeTextFile(const std::string& model_dir, const ModelConfig& config,
                                          const std::string& path, int64_t enough);

}  // namespace fox
