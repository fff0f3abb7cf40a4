// Windows that overlap by a token. See bpe_windows.h.
#include "models/tokenizer/bpe_windows.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

// The fraction of a window that its end leaves to the next one, because tokens there may change.
constexpr size_t kTail = 32;

// Where the tokens of a window are cut: the first `tokens` are kept, which end at byte `end` of the
// window; the next window starts there and must begin with a token that ends at `next_end`. end 0:
// there is no such place.
struct Cut {
  size_t tokens = 0, end = 0, next_end = 0;
};

// The last cut whose next token ends at or before `limit`.
Cut FindCut(const std::vector<WindowToken>& tokens, size_t limit) {
  Cut cut;
  size_t count = 0, end = 0;
  for (size_t i = 0; i < tokens.size() && tokens[i].end <= limit; ++i) {
    if (tokens[i].end <= end) continue;  // not the last token of its character
    cut = {count, end, tokens[i].end};
    count = i + 1;
    end = tokens[i].end;
  }
  return cut;
}

// The end of the first token of a window, or of the first character if several tokens spell it.
size_t FirstEnd(const std::vector<WindowToken>& tokens) {
  for (const WindowToken& token : tokens) {
    if (token.end > 0) return token.end;
  }
  return 0;
}

size_t CharacterStart(std::string_view text, size_t at) {
  while (at < text.size() && IsContinuationByte(text[at])) --at;
  return at;
}

}  // namespace

bool EncodeInWindows(std::string_view text, size_t window_bytes, std::optional<size_t> lookahead,
                     const WindowEncoder& encode, std::vector<int32_t>* ids) {
  FOX_CHECK(window_bytes > 0);
  struct Window {
    size_t begin, ids;  // where it begins in the text, and where its tokens begin in `ids`
    size_t first_end;   // end in the text of the token that it must begin with; 0: any token
  };
  std::vector<Window> windows = {{0, ids->size(), 0}};
  std::vector<WindowToken> tokens;
  // A window that has grown never shrinks again, because the reason may recur.
  size_t length = lookahead.has_value() ? window_bytes : text.size();
  for (;;) {
    FOX_CHECK(!windows.empty());
    const Window window = windows.back();
    FOX_CHECK(window.begin <= text.size());
    const size_t left = text.size() - window.begin;
    const size_t end = left <= length ? text.size() : CharacterStart(text, window.begin + length);
    tokens.clear();
    if (!encode(text.substr(window.begin, end - window.begin), &tokens)) return false;
    if (window.first_end != 0 && window.begin + FirstEnd(tokens) != window.first_end) {
      windows.pop_back();
      length *= 2;
      continue;
    }
    const bool last = end == text.size();
    Cut cut{tokens.size()};
    if (!last) {
      const size_t tail = *lookahead + length / kTail;
      cut = FindCut(tokens, std::max(end - window.begin, tail) - tail);
    }
    if (!last && cut.end == 0) {
      length *= 2;
      continue;
    }
    FOX_CHECK(window.ids <= ids->size() && cut.tokens <= tokens.size());
    ids->resize(window.ids);
    for (size_t i = 0; i < cut.tokens; ++i) ids->push_back(tokens[i].id);
    if (last) return true;
    windows.push_back({window.begin + cut.end, ids->size(), window.begin + cut.next_end});
  }
}

}  // namespace fox
