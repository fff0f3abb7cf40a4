// Request conversion: the wire's messages become engine requests, every field checked. Nothing
// behind it sees a protobuf request. Errors name the field as the .proto files write it. Read
// call.h next: it runs a spec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "fox/v1/inference.pb.h"
#include "models/checkpoint/generation_config.h"
#include "models/grammar/grammar.h"
#include "models/tokenizer/chat_format.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

inline constexpr int kMaxStops = 16;  // stop strings

// The values of fields that a request does not set: those of fox/v1/inference.proto or, if the
// model directory has a generation_config.json, of that file.
struct SamplingDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  uint32_t top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  uint32_t max_tokens = 256;
  std::vector<int32_t> eos_token_ids;  // beside those of config.json
};

// The defaults of `config`, checked against engine/request/sampling_limits.h. InvalidArgument names
// the key that is out of range.
absl::StatusOr<SamplingDefaults> SamplingDefaultsFrom(const GenerationConfig& config,
                                                      int64_t vocab_size);

// As JSON, for GetModelInfo.
std::string ToJson(const SamplingDefaults& defaults);

// Everything that requests are checked against: the model's tokenizer and limits, the engine's
// options, defaults. Constant while serving.
struct ConversionContext {
  const Tokenizer* tokenizer = nullptr;  // null: the model has none
  const ChatFormat* chat = nullptr;      // null: the model has none; needs a tokenizer
  GrammarCompiler* grammars = nullptr;   // null: the model has none; outlives the engine
  std::string served_model_name;
  ExecutorLimits limits;
  EngineOptions engine;
  SamplingDefaults defaults;
  std::optional<double> gain;  // of the model; unset: not measured
  size_t max_prompt_bytes = 4 << 20;
  bool add_bos_to_ids = false;  // needs a tokenizer whose Info::prefix is one token
  int32_t stream_interval = 1;
  int32_t stream_window = 64;  // tokens that a stream may run ahead of its unfinished writes
};

// One prompt of a call, ready to run.
struct GenerationSpec {
  std::string request_id;
  size_t prompt = 0;                     // its index in the call; set by the call
  std::vector<Request> sequences;        // n of them; `id` and deadlines are not set yet
  uint32_t queue_timeout_ms = 0;         // 0: none
  std::optional<GrammarSource> grammar;  // of the answers; the sequences do not have it yet
  const char* grammar_field = "";        // the field that it came in, for errors
  std::vector<std::string> relaxed;      // keywords of a schema that the grammar does not say
  std::vector<std::string> stop;
  bool include_stop = false;
  bool text = true, token_ids = false, logprobs = false;
  bool skip_special = true, perf = false, acp_stats = false;
  bool windows = false;
  bool audit = false;  // needs acp_stats
  int32_t stream_interval = 1;
  // Set if the prompt is to be echoed; the text by EchoesSentText.
  bool echo = false;
  std::string prompt_text;
};

// True if the echo of a prompt is its text as it was sent; else it is the text of its tokens. Both
// arguments may be one request.
inline bool EchoesSentText(const v1::GenerateRequest& prompt, const v1::GenerateRequest& settings) {
  return prompt.has_text() && !settings.has_truncate_prompt_tokens();
}

// Tokenizes: may take milliseconds. `stream` decides about the flow-control window. `score`: the
// prompt is all that is computed, and max_tokens is 0.
absl::StatusOr<GenerationSpec> ConvertGenerate(const v1::GenerateRequest& request, bool stream,
                                               const ConversionContext& context,
                                               bool score = false);
absl::StatusOr<GenerationSpec> ConvertScore(const v1::ScoreRequest& request,
                                            const ConversionContext& context);

// Sets the spec's `grammar`, not yet compiled, if the request prescribes a form of the answer.
absl::Status ConvertGrammar(const v1::GenerateRequest& request, const ConversionContext& context,
                            GenerationSpec* spec);

// Check a name or an id alone. CheckRequestId returns the request's id: a UUID if it is empty.
absl::StatusOr<std::string> CheckRequestId(const std::string& request_id);
absl::Status CheckModelName(const std::string& model, const ConversionContext& context);

// Token ids in [0, vocab_size).
absl::Status ConvertIds(const google::protobuf::RepeatedField<uint32_t>& in, const char* field,
                        int32_t vocab_size, std::vector<int32_t>* out);

// Checks and tokenizes a text, for prompts and for the tokenizer service. `field` names it in
// errors.
absl::StatusOr<std::vector<int32_t>> TokenizeText(const std::string& text, bool add_special,
                                                  const char* field,
                                                  const ConversionContext& context);
// Tokenizes a conversation of any length, with the errors of ConvertGenerate.
absl::StatusOr<std::vector<int32_t>> TokenizeMessages(const v1::ChatMessages& messages,
                                                      const ConversionContext& context);
// Detokenizes at most 2^20 ids.
absl::StatusOr<std::string> DetokenizeIds(const google::protobuf::RepeatedField<uint32_t>& ids,
                                          bool skip_special, const char* field,
                                          const ConversionContext& context);

v1::AcpMode ToWire(AcpMode mode);

}  // namespace fox
