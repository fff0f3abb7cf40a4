// StopCondition: which token ids end a request, and which must not be sampled yet. Token ids only;
// stop strings are the server's. Read sequence.h next.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request/request.h"

namespace fox {

class StopCondition {
 public:
  StopCondition(const StopParams& params, const std::vector<int32_t>& eos_token_ids);

  // True if sampling `id` ends the request. Such an id is not emitted.
  bool Stops(int32_t id) const;
  // True if `id` stops the request as an end of sequence.
  bool IsEos(int32_t id) const;
  // All ids that stop the request, ascending.
  const std::vector<int32_t>& ids() const { return stops_; }
  // Ids that must not be sampled after `generated` tokens: all ids() before min_tokens, else none.
  const std::vector<int32_t>& MaskedAt(int64_t generated) const;

 private:
  int32_t min_tokens_;
  std::vector<int32_t> eos_;    // sorted; empty with ignore_eos
  std::vector<int32_t> stops_;  // sorted, distinct; includes eos_
};

}  // namespace fox
