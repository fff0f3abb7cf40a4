// PageDemand: how many pages sequences will want together, though none wants its most at the time
// when the others do: each grows until it ends, and then gives all back. After the "future required
// memory" of Gong et al., ASPLOS 2025. Read page_forecast.h and scheduler.h next.
#pragma once

#include <cstdint>
#include <vector>

namespace fox {

class PageDemand {
 public:
  // Pages of one sequence. The expected ones are means.
  struct Of {
    int64_t held = 0;        // now
    int64_t most = 0;        // that its known tokens still take, if nothing is evicted
    double expected = 0;     // that they add to those held
    double deviation = 0;    // standard, of that
    double per_token = 0;    // that each later token adds
    double tokens_left = 0;  // until it ends
  };

  explicit PageDemand(std::vector<Of> sequences = {});
  void Add(const Of& sequence);
  // That must be free for `next` beside all that were added: enough in nearly every case.
  // Sequences are taken to decode at one pace. The first `given` tokens of each cost nothing.
  int64_t With(const Of& next, int64_t given) const;

 private:
  std::vector<Of> sequences_;  // the last to end comes first
  int64_t held_ = 0, most_ = 0;
};

}  // namespace fox
