// The two directions of GPT-2's byte alphabet. See byte_alphabet.h.
#include "models/tokenizer/byte_alphabet.h"

#include <algorithm>
#include <array>

#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

constexpr uint32_t kFirstStandIn = 0x100;

constexpr bool IsPrintable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

// The bytes that are not printable Latin-1, in order.
constexpr auto kStandIns = [] {
  std::array<uint8_t, 68> bytes = {};
  for (uint32_t byte = 0, count = 0; byte < 256; ++byte) {
    if (!IsPrintable(byte)) bytes[count++] = static_cast<uint8_t>(byte);
  }
  return bytes;
}();
static_assert(kStandIns.back() == 0xAD, "all 68 are found");

}  // namespace

std::string CharacterOfByte(uint8_t byte) {
  std::string out;
  const auto* place = std::lower_bound(kStandIns.begin(), kStandIns.end(), byte);
  const auto number = static_cast<uint32_t>(place - kStandIns.begin());
  AppendUtf8(IsPrintable(byte) ? byte : kFirstStandIn + number, &out);
  return out;
}

std::optional<std::string> BytesOfToken(const std::string& token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Unit unit = NextUtf8(token.data() + i, token.size() - i);
    const uint32_t number = unit.code_point - kFirstStandIn;
    if (!IsPrintable(unit.code_point) && number >= kStandIns.size()) return std::nullopt;
    const uint32_t byte = IsPrintable(unit.code_point) ? unit.code_point : kStandIns[number];
    bytes.push_back(static_cast<char>(byte));
    i += unit.length;
  }
  return bytes;
}

}  // namespace fox
