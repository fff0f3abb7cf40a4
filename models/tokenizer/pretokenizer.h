// GPT-2's pre-tokenizer: cuts text into the pieces that BPE works on, as this expression does:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// The pieces cover the text without gaps. Written as one pass over code points, so the cost is
// linear whatever the text. Read bpe_merger.h next.
#pragma once

#include <cstddef>
#include <string>

namespace fox {

// End of the piece that starts at `begin`. REQUIRES: `text` is valid UTF-8, begin < end <= size
// and both are at code points; text from `end` on is not looked at.
size_t NextPretoken(const std::string& text, size_t begin, size_t end);

}  // namespace fox
