// UseTokenizer: properties that every accepted tokenizer must have.
#pragma once

#include <string>
#include <vector>

#include "models/tokenizer/token_stream.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {

// Encodes `text` into ids of the vocabulary and decodes them, as a whole and as a stream. Returns
// the ids; none if the text is refused, because it is not UTF-8 or backtracks too long.
inline std::vector<int32_t> UseTokenizer(const Tokenizer& tokenizer, const std::string& text) {
  const Tokenizer::Info& info = tokenizer.info();
  for (const int32_t id : info.prefix) FOX_CHECK(id >= 0 && id < info.vocab_size);
  for (const auto& id : {info.bos_id, info.eos_id, info.unk_id}) {
    FOX_CHECK(!id.has_value() || (*id >= 0 && *id < info.vocab_size));
  }
  for (const int32_t id : {-1, 0, info.vocab_size / 2, info.vocab_size, 2147483647}) {
    (void)tokenizer.TokenBytes(id, /*skip_special=*/true);
    (void)tokenizer.KindOf(id);
  }
  const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text, true);
  if (!ids.ok()) {
    FOX_CHECK(absl::IsInvalidArgument(ids.status()) || absl::IsInternal(ids.status()));
    FOX_CHECK(IsValidUtf8(text) || absl::IsInvalidArgument(ids.status()));
    return {};
  }
  FOX_CHECK(IsValidUtf8(text));
  for (const int32_t id : *ids) FOX_CHECK(id >= 0 && id < info.vocab_size);
  for (const bool skip_special : {false, true}) {
    const std::string decoded = Detokenize(tokenizer, *ids, skip_special);
    FOX_CHECK(IsValidUtf8(decoded));
    TokenStream stream(tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : *ids) {
      const std::string piece = stream.Push(id);
      FOX_CHECK(IsValidUtf8(piece));
      streamed += piece;
    }
    FOX_CHECK(streamed + stream.Finish() == decoded);
  }
  return *ids;
}

}  // namespace fox
