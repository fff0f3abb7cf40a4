// EncodeInWindows: byte-pair encoding of a long text window by window, in the memory of a window,
// with exactly the tokens of the whole.
//
// BPE merges the neighbours with the best rule first, the leftmost among equals. While nothing
// merges across a boundary, both sides evolve independently. So the first merge across a boundary
// between two tokens would also happen in the text of these two alone: tokens are those of the
// whole text if and only if each pair of neighbours is the encoding of the pair's text. A window's
// tokens are such pairs. The next window starts where one of them ended, and must begin with the
// token that followed it there: then the pair across the windows is one of them, too. If it does
// not, the text after the window has changed its tokens, and the window grows. Read
// byte_level_bpe.h or sentencepiece_tokenizer.h next.
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
  // Bytes from the start of the window to its end. Of several tokens that spell out one character
  // the last has it, the others that of the character before.
  size_t end = 0;
};

// Appends the tokens of a piece of text, independent of other text; false: it failed.
using WindowEncoder =
    std::function<bool(std::string_view window, std::vector<WindowToken>* tokens)>;

inline constexpr size_t kWindowBytes = size_t{16} << 10;

// Appends the tokens of `text` (valid UTF-8) to `ids`; false once `encode` fails. It is called from
// the same thread with windows of whole characters, of `window_bytes` or a multiple. The symbols
// that BPE begins with must not depend on more than `lookahead` bytes after them; none: it is not
// BPE, and the text is one window.
bool EncodeInWindows(std::string_view text, size_t window_bytes, std::optional<size_t> lookahead,
                     const WindowEncoder& encode, std::vector<int32_t>* ids);

}  // namespace fox
