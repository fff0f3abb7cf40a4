// PromptTotals: the figures of one prompt's sequences, for its line in the log. Read call.h next.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/request/request.h"
#include "fox/v1/inference.pb.h"
#include "server/calls/access/call_info.h"
#include "server/calls/sequence_events.h"

namespace fox {

struct PromptTotals {
  // Adds a sequence that has ended.
  void AddSequence(const SequenceEvents& sequence, const RequestStats& stats);

  int64_t sequences = 0, prompt_tokens = 0;
  int64_t completion_tokens = 0, preemptions = 0, peak_pages = 0, pages_evicted = 0;
  Seconds scheduled = kNever, first_token = kNever;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;  // of the last sequence
};

// Logs "request finished": a prompt of `call` has ended at `end`, on the engine's clock.
void LogPromptEnd(const CallInfo& call, const std::string& request_id, const absl::Status& failure,
                  const PromptTotals& totals, Seconds end);

}  // namespace fox
