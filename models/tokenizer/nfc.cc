// Decomposition and composition by utf8proc. See nfc.h.
#include "models/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

int MarkClass(int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// Appends what a character decomposes to.
void Decompose(uint32_t code_point, std::vector<int32_t>* out) {
  int32_t parts[8] = {};  // the longest canonical decomposition has 4
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<int32_t>(code_point), parts, 8,
                                                         UTF8PROC_DECOMPOSE, nullptr);
  out->insert(out->end(), parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, 8));
}

}  // namespace

std::string Nfc(std::string_view text) {
  constexpr unsigned char kFirstMark = 0xCC;  // opens U+0300; all text below it is in form C
  const bool composed = std::all_of(text.begin(), text.end(), [](char byte) {
    return static_cast<unsigned char>(byte) < kFirstMark;
  });
  if (composed) return std::string(text);
  std::vector<int32_t> letters;
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = NextUtf8(text.data() + at, text.size() - at);
    Decompose(unit.code_point, &letters);
    at += unit.length;
  }
  // The library would sort a run of marks in quadratic time.
  for (auto begin = letters.begin(); begin != letters.end();) {
    const auto is_letter = [](int32_t code_point) { return MarkClass(code_point) == 0; };
    const auto end = std::find_if(begin, letters.end(), is_letter);
    std::stable_sort(begin, end, [](int32_t a, int32_t b) { return MarkClass(a) < MarkClass(b); });
    begin = std::find_if_not(end, letters.end(), is_letter);
  }
  const utf8proc_ssize_t size =
      utf8proc_normalize_utf32(letters.data(), static_cast<utf8proc_ssize_t>(letters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  std::string out;
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    AppendUtf8(static_cast<uint32_t>(letters[static_cast<size_t>(i)]), &out);
  }
  return out;
}

}  // namespace fox
