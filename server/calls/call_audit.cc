// Call: an answer's end waits for its audit. Read call.h first.
#include <utility>

#include "kernels/paging/acp.h"
#include "server/calls/call.h"

namespace fox {
namespace {

// An audit in the background is skipped if it has not ended this long after the answer.
constexpr Seconds kAuditPatience = 60;

}  // namespace

bool Call::StartAudit(PromptRun* run, SequenceEvents* sequence, const RequestOutput& output,
                      Seconds when) {
  if (!sequence->audited() || sequence->completion_tokens() == 0) return false;
  const double tolerance = output.finish->stats.acp.log_tolerance;
  if (tolerance == kNoMass) return false;
  const bool waits = run->spec.audit;
  Audited audited{.request_id = run->spec.request_id,
                  .tokens = sequence->TakeTokens(),
                  .prompt_tokens = sequence->prompt_tokens(),
                  .log_tolerance = tolerance,
                  .cache_salt = run->cache_salt,
                  .tenant = info_.tenant,
                  .bypass_prefix_cache = run->bypass_prefix_cache,
                  .deadline = info_.deadline,
                  .done = nullptr};
  if (waits) {
    RequestOutput kept;
    kept.id = output.id;
    kept.finish = output.finish;
    audited.done = [this, when, kept = std::move(kept),
                    end = std::make_shared<AuditEnd>(shared_from_this(), run)](v1::Audit audit) {
      end->audit = std::move(audit);
      core_.delivery().Post(lane_, {end, kept, when});
    };
  } else {
    audited.deadline = core_.engine.Now() + kAuditPatience;
  }
  core_.auditor().Start(audited);
  return waits;
}

void Call::ReceiveAudit(PromptRun* run, const RequestOutput& output, const v1::Audit& audit,
                        Seconds when) {
  if (run->done) return;
  EndSequence(run, &FindSequence(run, output.id), *output.finish, &audit, when);
  if (run->finished == run->sequences.size()) CompletePrompt(run);
}

}  // namespace fox
