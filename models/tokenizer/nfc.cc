// Decomposition and composition by utf8proc. See nfc.h.
#include "models/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/core/check.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

// Marks that are newer than the reference implementation, which has Unicode 10: first and last of
// each run. It takes them for letters, which combine with nothing.
constexpr uint32_t kNewMarks[][2] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}};

bool IsNewMark(uint32_t code_point) {
  const auto* run = std::lower_bound(
      std::begin(kNewMarks), std::end(kNewMarks), code_point,
      [](const uint32_t(&entry)[2], uint32_t wanted) { return entry[1] < wanted; });
  return run != std::end(kNewMarks) && (*run)[0] <= code_point;
}

int MarkClass(int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// Appends the canonical decomposition of a character.
void Decompose(uint32_t code_point, std::vector<int32_t>* out) {
  int32_t parts[8] = {};  // the longest canonical decomposition has 4
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<int32_t>(code_point), parts, 8,
                                                         UTF8PROC_DECOMPOSE, nullptr);
  FOX_CHECK(count > 0 && count <= 8);
  out->insert(out->end(), parts, parts + count);
}

// Moves the decomposed `letters` to `out`, composed.
void Compose(std::vector<int32_t>* letters, std::string* out) {
  // Sorts runs of marks first: the library would take quadratic time for it.
  for (auto begin = letters->begin(); begin != letters->end();) {
    const auto is_letter = [](int32_t code_point) { return MarkClass(code_point) == 0; };
    const auto end = std::find_if(begin, letters->end(), is_letter);
    std::stable_sort(begin, end, [](int32_t a, int32_t b) { return MarkClass(a) < MarkClass(b); });
    begin = std::find_if_not(end, letters->end(), is_letter);
  }
  const utf8proc_ssize_t size =
      utf8proc_normalize_utf32(letters->data(), static_cast<utf8proc_ssize_t>(letters->size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    AppendUtf8(static_cast<uint32_t>((*letters)[static_cast<size_t>(i)]), out);
  }
  letters->clear();
}

}  // namespace

std::string Nfc(std::string_view text) {
  constexpr unsigned char kFirstMark = 0xCC;  // opens U+0300; all text below it is in form C
  const bool composed = std::all_of(text.begin(), text.end(), [](char byte) {
    return static_cast<unsigned char>(byte) < kFirstMark;
  });
  if (composed) return std::string(text);
  std::vector<int32_t> letters;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = NextUtf8(text.data() + at, text.size() - at);
    if (IsNewMark(unit.code_point)) {
      Compose(&letters, &out);
      AppendUtf8(unit.code_point, &out);
    } else {
      Decompose(unit.code_point, &letters);
    }
    at += unit.length;
  }
  Compose(&letters, &out);
  return out;
}

}  // namespace fox
