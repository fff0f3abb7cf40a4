// Error texts from untrusted bytes: see error_text.h.
#include "models/checkpoint/error_text.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace fox {
namespace {

constexpr size_t kMaxShown = 120;

}  // namespace

std::string Printable(const std::string& text) {
  std::string shown = text.substr(0, std::min(text.size(), kMaxShown));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (shown.size() < text.size()) shown += "...";
  return shown;
}

std::string Quoted(const std::string& text) { return absl::StrCat("\"", Printable(text), "\""); }

absl::Status InvalidFile(const std::string& name, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", problem));
}

}  // namespace fox
