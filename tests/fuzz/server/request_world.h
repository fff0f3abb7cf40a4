// The limits that the targets check requests against, and the properties of every accepted request,
// which are not checked again after the conversion.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "engine/request/request_validation.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "server/calls/conversion/request_conversion.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/models/tokenizer/small_vocabulary.h"

namespace fox {

inline constexpr int64_t kFuzzModelLen = 64;

struct RequestWorld {
  explicit RequestWorld(bool with_tokenizer) {
    BpeDefinition definition = SmallDefinition();
    definition.prefix = {258};
    const auto vocab_size = static_cast<int32_t>(definition.vocab.size());
    tokenizer = *ByteLevelBpe::Create(definition, vocab_size);
    context.tokenizer = with_tokenizer ? tokenizer.get() : nullptr;
    chat = *ChatFormat::Parse(
        R"({"roles": {"user": {"prefix": "U:"}, "assistant": {"suffix": "\n", "trim": true},
                      "system": {"prefix": "S:"}, "tool": {"prefix": "R:", "suffix": "\n"}},
            "tools": {"prefix": "F:", "prefix_alone": "F:", "tool": "\n", "suffix": ";",
                      "call": "<c>{\"n\": \"", "arguments": "\", \"a\": ", "call_end": "}</c>",
                      "separator": "\n", "next_response": ","},
            "bos": "<|endoftext|>", "generation_prompt": "A:"})",
        *tokenizer);
    context.chat = with_tokenizer ? &*chat : nullptr;
    if (with_tokenizer) context.grammars = &grammars;
    context.served_model_name = "model";
    context.max_prompt_bytes = 4096;
    context.limits.num_pages = 4096;
    context.limits.lists_per_slot = 2;
    context.limits.layers = 1;
    context.limits.max_num_seqs = 8;
    context.limits.max_model_len = kFuzzModelLen;
    context.limits.max_num_batched_tokens = 256;
    context.limits.max_logit_rows = 256;
    context.limits.vocab_size = vocab_size;
    context.engine.priority_scheduling = with_tokenizer;
    if (!with_tokenizer) context.engine.acp = AcpMode::kOff;
    context.defaults.eos_token_ids = {258};
  }

  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatFormat> chat;
  GrammarCompiler grammars{[] { return std::vector<std::string>(); }};  // compiles none
  ConversionContext context;
};

inline void CheckSpec(const GenerationSpec& spec, const ConversionContext& context) {
  FOX_CHECK(!spec.sequences.empty() && spec.sequences.size() <= 16);
  FOX_CHECK(!spec.request_id.empty() && spec.request_id.size() <= 256);
  FOX_CHECK(spec.stream_interval >= 1 && spec.stream_interval <= 1024);
  FOX_CHECK(spec.stop.size() <= 17);  // a chat format may add one
  for (const std::string& stop : spec.stop) FOX_CHECK(!stop.empty() && stop.size() <= 256);
  const int32_t vocab_size = context.limits.vocab_size;
  for (const Request& request : spec.sequences) {
    // A request that the engine would refuse must not come so far. The engine alone checks that the
    // pool is large enough, the priority, and that a token is left to draw.
    const absl::Status valid = ValidateRequest(request, context.engine, context.limits);
    FOX_CHECK(valid.ok() || absl::IsOutOfRange(valid) ||
              absl::StartsWith(valid.message(), "priority") ||
              absl::StartsWith(valid.message(), "min_tokens: every allowed token"));
    FOX_CHECK(!request.prompt.empty());
    const auto length = static_cast<int64_t>(request.prompt.size());
    FOX_CHECK(length + request.stop.max_tokens <= kFuzzModelLen);
    FOX_CHECK(request.stop.min_tokens >= 0 && request.stop.min_tokens <= request.stop.max_tokens);
    for (const auto* ids :
         {&request.prompt, &request.stop.stop_token_ids, &request.sampling.allowed_token_ids,
          &request.sampling.logprob_token_ids}) {
      for (const int32_t id : *ids) FOX_CHECK(id >= 0 && id < vocab_size);
    }
    for (const auto& [id, bias] : request.sampling.logit_bias) {
      FOX_CHECK(id >= 0 && id < vocab_size && bias >= -100 && bias <= 100);
    }
    FOX_CHECK(!request.log_tolerance || *request.log_tolerance <= context.engine.log_tolerance);
  }
}

// True if two specs ask for the same. Request ids and seeds that were not given are random.
inline bool SameWork(const GenerationSpec& a, const GenerationSpec& b, bool seeded) {
  bool same = a.sequences.size() == b.sequences.size() && a.stop == b.stop &&
              a.include_stop == b.include_stop && a.text == b.text && a.token_ids == b.token_ids &&
              a.skip_special == b.skip_special && a.echo == b.echo &&
              a.prompt_text == b.prompt_text;
  for (size_t i = 0; same && i < a.sequences.size(); ++i) {
    const Request &x = a.sequences[i], &y = b.sequences[i];
    const SamplingParams &p = x.sampling, &q = y.sampling;
    same = x.prompt == y.prompt && x.priority == y.priority &&
           x.stop.max_tokens == y.stop.max_tokens && x.stop.min_tokens == y.stop.min_tokens &&
           x.stop.stop_token_ids == y.stop.stop_token_ids &&
           x.stop.ignore_eos == y.stop.ignore_eos && x.flow_window == y.flow_window &&
           p.temperature == q.temperature && p.top_p == q.top_p && p.top_k == q.top_k &&
           p.min_p == q.min_p && p.presence_penalty == q.presence_penalty &&
           p.frequency_penalty == q.frequency_penalty &&
           p.repetition_penalty == q.repetition_penalty && p.logit_bias == q.logit_bias &&
           p.allowed_token_ids == q.allowed_token_ids && p.logprobs == q.logprobs &&
           p.prompt_logprobs == q.prompt_logprobs && (!seeded || p.seed == q.seed);
  }
  return same;
}

}  // namespace fox
