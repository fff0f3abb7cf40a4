// EncodeInWindows: byte-pair encoding of a long text window by window, in the memory of a window,
// with exactly the tokens of the whole.
//
// BPE merges the neighbours with the best rule first, the leftmost among equals. As long as nothing
// merges across a boundary both sides evolve on their own. So the first merge across a boundary
// between two tokens would happen in the text of these two alone as well: tokens are those of the
// whole text if, and only if, each pair of neighbours is what the text of the pair gives. A
// window's tokens are such pairs. The next window starts where one of them ended, and must begin
// with the token that followed it there: then the pair across is one of them, too. Where it does
// not, what lies behind the window has changed its tokens, and the window grows.
// Read byte_level_bpe.h or sentencepiece_tokenizer.h next.
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

// Appends the tokens of a piece of text, all that it sees; false: it cannot.
using WindowEncoder =
    std::function<bool(std::string_view window, std::vector<WindowToken>* tokens)>;

inline constexpr size_t kWindowBytes = size_t{16} << 10;

// Appends the tokens of `text` (valid UTF-8) to `ids`; false once `encode` fails. It is called from
// the same thread with windows of whole characters, of `window_bytes` or a multiple. The symbols
// that BPE begins with must not depend on more than `lookahead` bytes behind them; none: it is no
// BPE, and the text is one window.
bool EncodeInWindows(std::string_view text, size_t window_bytes, std::optional<size_t> lookahead,
                     const WindowEncoder& encode, std::vector<int32_t>* ids);

}  // namespace fox
