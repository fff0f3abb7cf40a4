// StopCondition: sorted lists of ids. Read stop_condition.h first.
#include "engine/request/stop_condition.h"

#include <algorithm>

namespace fox {

StopCondition::StopCondition(const StopParams& params, const std::vector<int32_t>& eos_token_ids)
    : min_tokens_(params.min_tokens), stops_(params.stop_token_ids) {
  if (!params.ignore_eos) {
    eos_ = eos_token_ids;
    std::sort(eos_.begin(), eos_.end());
    stops_.insert(stops_.end(), eos_.begin(), eos_.end());
  }
  std::sort(stops_.begin(), stops_.end());
  stops_.erase(std::unique(stops_.begin(), stops_.end()), stops_.end());
}

bool StopCondition::Stops(int32_t id) const {
  return std::binary_search(stops_.begin(), stops_.end(), id);
}

bool StopCondition::IsEos(int32_t id) const {
  return std::binary_search(eos_.begin(), eos_.end(), id);
}

const std::vector<int32_t>& StopCondition::MaskedAt(int64_t generated) const {
  static const std::vector<int32_t> none;
  return generated < min_tokens_ ? stops_ : none;
}

}  // namespace fox
