// TraceContext: see call_info.h.
#include <algorithm>

#include "server/calls/access/call_info.h"

namespace fox {
namespace {

constexpr size_t kSize = 55;  // of version 00; later ones may be longer

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

TraceContext ParseTraceParent(std::string_view header) {
  const std::string_view known = header.substr(0, kSize);
  if (known.size() < kSize) return {};
  const std::string_view version = known.substr(0, 2);
  if (!IsHex(version) || version == "ff") return {};
  if (header.size() > kSize && (version == "00" || header[kSize] != '-')) return {};
  const bool dashes = known[2] == '-' && known[35] == '-' && known[52] == '-';
  if (!dashes || !IsId(known.substr(3, 32)) || !IsId(known.substr(36, 16)) ||
      !IsHex(known.substr(53))) {
    return {};
  }
  return {std::string(known)};
}

}  // namespace fox
