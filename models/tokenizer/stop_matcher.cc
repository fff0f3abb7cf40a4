// Knuth, Morris and Pratt over all stop strings at once. See stop_matcher.h.
#include "models/tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace fox {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& text : stops) {
    FOX_CHECK(!text.empty());
    std::vector<size_t> border(text.size() + 1, 0);
    for (size_t n = 1, k = 0; n < text.size(); ++n) {
      while (k > 0 && text[n] != text[k]) k = border[k];
      if (text[n] == text[k]) ++k;
      border[n + 1] = k;
    }
    stops_.push_back({text, std::move(border)});
  }
}

int StopMatcher::Push(char byte) {
  int match = -1;
  size_t longest = 0;
  held_ = 0;
  for (size_t i = 0; i < stops_.size(); ++i) {
    Stop& stop = stops_[i];
    size_t n = stop.matched;
    FOX_CHECK(n <= stop.text.size());
    while (n > 0 && (n == stop.text.size() || stop.text[n] != byte)) n = stop.border[n];
    stop.matched = stop.text[n] == byte ? n + 1 : 0;
    held_ = std::max(held_, stop.matched);
    if (stop.matched < stop.text.size() || stop.matched <= longest) continue;
    longest = stop.matched;
    match = static_cast<int>(i);
  }
  return match;
}

}  // namespace fox
