// EncodeInWindows: byte-pair encoding of a long text window by window, in the memory of a window,
// with exactly the tokens that the whole text has.
//
// BPE merges the neighbours with the best rule first, the leftmost among equals. While nothing
// merges across a boundary, both sides evolve independently. So the first merge across a boundary
// between two tokens would also happen in the text of these two alone. Hence a sequence of tokens
// is the encoding of the whole text if and only if each pair of neighbours is the encoding of the
// pair's text. Within a window this holds. The next window starts where a token of the last one
// ended, and must begin with the token that followed there: then it also holds for the pair across
// the two windows. If it begins with another token, the text behind the last window has changed
// that window's tokens, and the window grows. Read byte_level_bpe.h or sentencepiece_tokenizer.h
// next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace fox {

struct WindowToken {
  int32_t id = 0;
  // Bytes from the start of the window to the end of this token. If several tokens spell one
  // character, only the last one has its end; the others have the end of the character before.
  size_t end = 0;
};

// Appends the tokens of a window, as if there were no other text. False: it failed.
using WindowEncoder =
    std::function<bool(std::string_view window, std::vector<WindowToken>* tokens)>;

inline constexpr size_t kWindowBytes = size_t{16} << 10;

// Appends the tokens of `text` (valid UTF-8) to `ids`; false if `encode` fails. `encode` is called
// on the same thread with windows of whole characters, of `window_bytes` or a multiple. REQUIRES:
// the symbols that BPE begins with do not depend on more than `lookahead` bytes after them. Without
// a value `encode` is not BPE, and the whole text is one window.
bool EncodeInWindows(std::string_view text, size_t window_bytes, std::optional<size_t> lookahead,
                     const WindowEncoder& encode, std::vector<int32_t>* ids);

}  // namespace fox
