// What a byte-level BPE tokenizer that was accepted must do, beyond what any tokenizer must: the
// ids of the plain definition, no byte lost, and the same tokenizer again from the tokenizer.json
// that it writes.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/byte_alphabet.h"
#include "models/tokenizer/byte_level_bpe.h"
#include "models/tokenizer/pretokenizer.h"
#include "tests/fuzz/models/tokenizer_use.h"

namespace fox {

inline constexpr int64_t kFuzzVocabSize = 1000;
inline constexpr size_t kMaxFuzzText = 512;  // bytes, as the plain definition is quadratic

// The JSON text with the 256 bytes in the vocabulary at `place`.
inline std::string WithBytes(const std::string& text, const std::string& place) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer vocab(place);
  if (!json.contains(vocab) || !json[vocab].is_object()) return text;
  for (int byte = 0; byte < 256; ++byte) {
    json[vocab][CharacterOfByte(static_cast<uint8_t>(byte))] = byte;
  }
  return json.dump();
}

using MergeRanks = std::map<std::pair<std::string, std::string>, size_t>;

inline void AppendPlainly(const std::string& pretoken, const BpeDefinition& definition,
                          const MergeRanks& ranks, std::vector<int32_t>* ids) {
  std::vector<std::string> pieces;
  for (const char byte : pretoken) {
    pieces.push_back(CharacterOfByte(static_cast<uint8_t>(byte)));
  }
  while (true) {
    size_t best = std::numeric_limits<size_t>::max(), at = 0;
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      const auto rank = ranks.find({pieces[i], pieces[i + 1]});
      if (rank == ranks.end() || rank->second >= best) continue;
      best = rank->second;
      at = i;
    }
    if (best == std::numeric_limits<size_t>::max()) break;
    pieces[at] += pieces[at + 1];
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  for (const std::string& piece : pieces) ids->push_back(definition.vocab.at(piece));
}

// REQUIRES: no added tokens, no ignore_merges; `text` is valid UTF-8.
inline std::vector<int32_t> EncodePlainly(const std::string& text,
                                          const BpeDefinition& definition) {
  MergeRanks ranks;
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    ranks[definition.merges[rank]] = rank;
  }
  std::vector<int32_t> ids;
  uint64_t budget = Pretokenizer::Budget(text.size());
  const absl::Status status = Pretokenizer::Create(definition.pretokenizer)
                                  ->Split(text, &budget, [&](std::string_view piece) {
                                    FOX_CHECK(!piece.empty());
                                    AppendPlainly(std::string(piece), definition, ranks, &ids);
                                  });
  FOX_CHECK(status.ok());
  return ids;
}

inline void UseByteLevel(absl::StatusOr<BpeDefinition> definition, std::string text) {
  if (!definition.ok()) return CheckRefusal(definition.status());
  text.resize(std::min(text.size(), kMaxFuzzText));
  definition->json_escaped = true;
  const auto escaped = ByteLevelBpe::Create(*definition, kFuzzVocabSize);
  definition->json_escaped = false;
  const auto plain = ByteLevelBpe::Create(*definition, kFuzzVocabSize);
  if (!plain.ok()) {
    FOX_CHECK(!escaped.ok());
    return CheckRefusal(plain.status());
  }
  UseTokenizer(**plain, text);
  if (escaped.ok()) {
    UseTokenizer(**escaped, text);
  } else {
    CheckRefusal(escaped.status());
  }
  if (!IsValidUtf8(text)) return;
  const auto& steps = definition->pretokenizer;
  const bool keeps_text =
      !definition->nfc && std::none_of(steps.begin(), steps.end(), [](const auto& step) {
        return step.prefix_space || step.behavior == PretokenizerStep::Behavior::kRemoved;
      });
  const auto ids = (*plain)->Encode(text, false);
  if (!ids.ok() || !definition->added.empty()) return;
  for (int byte = 0; byte < 256; ++byte) {
    if (!definition->vocab.contains(CharacterOfByte(static_cast<uint8_t>(byte)))) return;
  }
  if (keeps_text) FOX_CHECK(Detokenize(**plain, *ids, false) == text);
  if (!definition->ignore_merges && !definition->nfc) {
    FOX_CHECK(*ids == EncodePlainly(text, *definition));
  }
  if (escaped.ok() && keeps_text && (*escaped)->Encode(text, false).ok()) {
    FOX_CHECK(Detokenize(**escaped, *(*escaped)->Encode(text, false), false) == text);
  }
}

}  // namespace fox
