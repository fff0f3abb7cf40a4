// LookUpDrafts: finds earlier occurrences of the last tokens.
#include "engine/request/speculation.h"

namespace fox {

std::vector<int32_t> LookUpDrafts(const std::vector<int32_t>& tokens, const Speculation& how,
                                  int64_t skip, int64_t count, int64_t window) {
  const int32_t* const begin = tokens.data();
  const int32_t* const end = begin + tokens.size();
  const int32_t* const first = end - std::min<int64_t>(end - begin, window);
  const int32_t* best = nullptr;
  int longest = how.lookup_min - 1;
  for (const int32_t* at = end - 1; at > first && longest < how.lookup_max; --at) {
    if (at[-1] != end[-1]) continue;
    int same = 1;
    while (same < how.lookup_max && at - same > first && at[-1 - same] == end[-1 - same]) ++same;
    if (same <= longest) continue;
    longest = same;
    best = at;
  }
  std::vector<int32_t> drafts;
  if (best == nullptr) return drafts;
  // If the drafts reach the end of the tokens, the text between both occurrences repeats.
  const int64_t period = end - best;
  for (int64_t i = skip; i < skip + count; ++i) drafts.push_back(best[i % period]);
  return drafts;
}

}  // namespace fox
