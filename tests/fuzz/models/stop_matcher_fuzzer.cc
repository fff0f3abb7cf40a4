// StopMatcher against a search of the whole text after each byte.
#include <algorithm>
#include <string>
#include <vector>

#include "models/tokenizer/stop_matcher.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

bool EndsWith(const std::string& text, const std::string& end, size_t size) {
  return size <= text.size() && text.compare(text.size() - size, size, end, 0, size) == 0;
}

}  // namespace

FUZZ_TEST(stop_matcher) {
  std::vector<std::string> stops(in.Below(17));
  for (std::string& stop : stops) {
    stop = in.Text(20);
    if (stop.empty()) stop = "a";
  }
  StopMatcher matcher(stops);
  std::string text;
  for (const char byte : in.Rest().substr(0, 256)) {
    text.push_back(byte);
    int longest = -1;
    size_t held = 0;
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& stop = stops[i];
      if (EndsWith(text, stop, stop.size()) &&
          (longest < 0 || stop.size() > stops[static_cast<size_t>(longest)].size())) {
        longest = static_cast<int>(i);
      }
      for (size_t size = stop.size(); size > held; --size) {
        if (EndsWith(text, stop, size)) held = size;
      }
    }
    FOX_CHECK(matcher.Push(byte) == longest);
    FOX_CHECK(matcher.held() == held);
  }
}

}  // namespace fox
