// TextAssembler over a tokenizer of arbitrary tokens, against the definition: the text of all bytes
// up to the first end of a stop string behind the tokens that may not stop, shown as soon as it is
// final.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/text_assembler.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

// Tokens of any bytes, as byte-level BPE has them, or of whole characters, as sentencepiece has.
class FuzzTokenizer final : public Tokenizer {
 public:
  explicit FuzzTokenizer(FuzzInput& in) {
    if (in.Bool()) info_.replacement = Utf8Replacement::kByte;
    const size_t size = 1 + in.Below(8);
    for (size_t id = 0; id < size; ++id) {
      const auto kind = static_cast<TokenKind>(in.Below(3));
      tokens_.push_back({in.Text(6), kind});
      if (!IsValidUtf8(tokens_.back().bytes)) tokens_.back().kind = TokenKind::kBytes;
    }
    info_.vocab_size = static_cast<int32_t>(size);
  }
  absl::StatusOr<std::vector<int32_t>> Encode(const std::string&, bool) const override {
    return absl::UnimplementedError("no text comes in here");
  }
};

// The text of the tokens. A character that tokens of bytes leave incomplete ends at any other
// token. Without `final`, bytes that more tokens could complete are left out.
std::string TextOf(const FuzzTokenizer& tokenizer, const std::vector<int32_t>& ids, bool final) {
  std::string text, bytes;
  const auto flush = [&](bool whole = true) {
    DrainUtf8(&bytes, whole, tokenizer.info().replacement, &text);
  };
  for (const int32_t id : ids) {
    const bool whole = tokenizer.KindOf(id) != Tokenizer::TokenKind::kBytes;
    if (whole) flush();
    bytes += tokenizer.TokenBytes(id, false);
    if (whole) flush();
  }
  flush(final);
  return text;
}

struct Expected {
  std::string text;
  std::string stop;  // "": none
};

// Cuts a text at the match that ends first after `begin`; if several end together, at the longest.
Expected Cut(const std::string& text, size_t begin, const std::vector<std::string>& stops,
             bool include) {
  for (size_t end = begin + 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (stop.size() > best.size()) best = stop;
    }
    if (!best.empty()) return {text.substr(0, include ? end : end - best.size()), best};
  }
  return {text, ""};
}

// The longest end of the text that begins a stop string.
size_t Held(const std::string& text, const std::vector<std::string>& stops) {
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t size = held + 1; size <= stop.size(); ++size) {
      if (text.ends_with(stop.substr(0, size))) held = size;
    }
  }
  return held;
}

}  // namespace

FUZZ_TEST(text_assembler) {
  const FuzzTokenizer tokenizer(in);
  const bool include = in.Bool();
  const size_t unstoppable = in.Below(4);  // tokens
  std::vector<std::string> stops(in.Below(4));
  for (std::string& stop : stops) {
    stop = in.Text(8);
    if (stop.empty()) stop = "ab";
  }
  std::vector<int32_t> ids;
  for (const char byte : in.Rest().substr(0, 64)) {
    ids.push_back(static_cast<uint8_t>(byte) % tokenizer.info().vocab_size);
  }
  const std::vector<int32_t> before(
      ids.begin(), ids.begin() + static_cast<int64_t>(std::min(unstoppable, ids.size())));
  const size_t begin = TextOf(tokenizer, before, /*final=*/false).size();
  const Expected expected = Cut(TextOf(tokenizer, ids, /*final=*/true), begin, stops, include);
  TextAssembler assembler(tokenizer, /*skip_special=*/false, stops, include);
  std::string shown, stop;
  const auto take = [&](const TextAssembler::Shown& piece) {
    FOX_CHECK(stop.empty() || (piece.text.empty() && piece.stop < 0));
    shown += piece.text;
    if (piece.stop >= 0) stop = stops[static_cast<size_t>(piece.stop)];
  };
  size_t longest = 0;
  for (const std::string& s : stops) longest = std::max(longest, s.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    take(assembler.Push(ids[i], /*may_stop=*/i >= unstoppable));
    FOX_CHECK(shown.size() <= expected.text.size());
    if (!stop.empty()) continue;
    if (unstoppable == 0) {
      const std::string whole =
          TextOf(tokenizer, {ids.begin(), ids.begin() + 1 + static_cast<int>(i)}, false);
      FOX_CHECK(shown.size() + Held(whole, stops) == whole.size());
    }
    // Less than a stop string and less than a character may be held back.
    const std::string so_far =
        TextOf(tokenizer, {ids.begin(), ids.begin() + 1 + static_cast<int>(i)}, /*final=*/true);
    FOX_CHECK(shown.size() + std::max<size_t>(longest, 1) - 1 + 9 >= so_far.size());
  }
  take(assembler.Finish());
  FOX_CHECK(shown == expected.text);
  FOX_CHECK(stop == expected.stop);
}

}  // namespace fox
