// The character map of a sentencepiece model: a map that CheckCharsMap accepts does no harm when
// the library uses it on any text. With an odd first byte the map is the rest of the input; else
// its trie is made of the edges that the input lists.
#include <algorithm>
#include <string>
#include <vector>

#include "models/tokenizer/sentencepiece_check.h"
#include "models/tokenizer/sentencepiece_model.h"
#include "models/tokenizer/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/models/tokenizer/model_proto_writer.h"

namespace fox {
namespace {

constexpr uint32_t kBlock = 256;  // units
constexpr uint32_t kLeaf = 1u << 8, kNoUnit = 1u << 31;

std::string ComposedMap(FuzzInput& in) {
  const auto blocks = static_cast<uint32_t>(1 + in.Below(4));
  std::vector<uint32_t> units(blocks * kBlock, kNoUnit);
  const auto state = [&](size_t among) {
    const auto block = static_cast<uint32_t>(in.Below(among));
    return block * kBlock + static_cast<uint32_t>(in.Below(4));
  };
  const auto edge = [&](uint32_t at, uint32_t label) {
    units[at] = (state(blocks + 1) ^ at) << 10 | label;
    if (in.Bool()) units[at] |= kLeaf;
    if (in.Below(16) == 0) units[at] ^= 1u << in.Below(32);
  };
  edge(0, 0);
  for (size_t count = in.Below(64); count > 0; --count) {
    const uint32_t from = state(blocks);
    const auto letter = static_cast<uint32_t>('a' + in.Below(3));
    const uint32_t label = in.Bool() ? letter : in.Byte();
    edge(from ^ label, label);
  }
  for (size_t count = in.Below(16); count > 0; --count) {  // values: where replacements begin
    const uint32_t at = state(blocks);
    units[at] = kNoUnit | static_cast<uint32_t>(in.Below(40));
  }
  std::string map;
  const auto put = [&map](uint32_t value) {
    for (int i = 0; i < 4; ++i) map.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  };
  put(blocks * kBlock * 4);
  for (const uint32_t unit : units) put(unit);
  map += in.Text(40);
  return map + std::string(in.Below(2), '\0');
}

}  // namespace

FUZZ_TEST(charsmap) {
  const bool raw = in.Bool();
  const std::string text = in.Text(80);
  std::string map = raw ? "" : ComposedMap(in);
  map += in.Rest();
  const absl::Status status = CheckCharsMap(map);
  if (!status.ok()) return CheckRefusal(status);
  const std::string model = Start() + Letters() + Trainer(false) + CharsMapField(map);
  FOX_CHECK(CheckSentencePieceModel(model).ok());
  std::string error;
  const auto library = SentencePieceModel::Parse(model, &error);
  if (library == nullptr) return;
  std::string normalized;
  for (const std::string& each : {text, std::string("abcabc aabb \xC3\xA9\xE2\x96\x81"),
                                  std::string(64, 'a'), std::string("\x01\x7F\x00z", 4)}) {
    std::vector<WindowToken> tokens;
    if (!library->Normalize(each, &normalized, &error)) continue;
    if (IsValidUtf8(normalized)) (void)library->Encode(each, &tokens, &error);
  }
}

}  // namespace fox
