// ConversionContext: what requests are checked against: the model's tokenizer and limits, the
// engine's options, defaults. Read request_conversion.h next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/engine.h"
#include "models/tokenizer/tokenizer.h"
#include "server/calls/sampling_defaults.h"

namespace fox {

// Constant while serving.
struct ConversionContext {
  const Tokenizer* tokenizer = nullptr;  // null: the model has none
  std::string served_model_name;
  ExecutorLimits limits;
  EngineOptions engine;
  SamplingDefaults defaults;
  size_t max_prompt_bytes = 4 << 20;
  bool add_bos_to_ids = false;  // needs a tokenizer whose Info::prefix is one token
  int32_t stream_interval = 1;
  int32_t stream_window = 64;  // tokens that a stream may run ahead of its unfinished writes
};

}  // namespace fox
