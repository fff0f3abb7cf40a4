// Unicode normalization form C. Read byte_level_bpe.h next.
#pragma once

#include <string>
#include <string_view>

namespace fox {

// REQUIRES: `text` is valid UTF-8. Cost O(n log n), even if a letter has very many marks.
std::string Nfc(std::string_view text);

}  // namespace fox
