// Bugs to plant, one at a time, each where a real one could sit: in the page pool, in the executor,
// in the plans (as a scheduler could make them), in what the engine is told (as if it did not hear
// it) and in what it delivers. The simulation must find each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/engine/sim/names.h"

namespace fox::sim {

enum class Bug : uint8_t {
  kNone,
  // The page pool: paged_keys.cc.
  kFreeTwice,         // an evicted page is pushed twice
  kLeakOnRelease,     // a released page is forgotten
  kLeakOnEvict,       // an evicted page is not freed
  kSharePage,         // a list takes over another list's page
  kSwapHeads,         // two heads of a sequence swap lists
  kSwapPages,         // two pages of a list change places
  kEvictEarly,        // a page too many
  kForgetToEvict,     // a page that should go stays
  kRevivePage,        // a freed page is live again
  kLosePage,          // a page is live no more, and not freed
  kOverwrite,         // a key of an old page changes
  kKeepSlot,          // a release is forgotten
  kReleaseNeighbour,  // another slot's page is freed with it
  kSkipPageEdge,      // the first key of a page is not written
  kWriteBehind,       // a key is written one place on
  kWriteFreed,        // a free page is written
  kSpoilSwapped,      // a bit of what is swapped out changes
  kSwapIntoOld,       // what is swapped in has a page that it had
  kSwapDisorder,      // two pages of it change places
  kForgetWindow,      // what is swapped in has evicted pages again
  kForgetBounds,      // the bounds of a page that is swapped in are other ones
  kShareUncounted,    // one more has a page, uncounted
  kShareTwice,        // one more has a page and counts twice
  kShareLess,         // a page is not shared with the others
  // The executor: fake_executor.cc.
  kOverstateFree,   // reports pages that do not exist
  kOverstateLive,   // reports more live pages than a slot has
  kWrongLogitRows,  // rows of two sequences are swapped
  kStaleSample,     // a sampled token is delivered but not kept: an older one is fed
  kSwapSamples,     // sampled tokens of two sequences are swapped
  kStaleStates,     // a slot keeps the token states it had
  kForgetCount,     // a sampled token is not counted
  kWrongWindows,    // first pages of another slot are reported
  kOverstateSole,   // reports a page as a slot's alone that others have
  // Plans: planted_plan.h.
  kPlanKeepsSlot,       // forgets to release a slot
  kPlanReleasesEarly,   // releases the slot of a sequence that runs
  kPlanSkipsToken,      // feeds a chunk without its first token
  kPlanRepeatsToken,    // feeds a token again
  kPlanSwapsTokens,     // feeds two tokens of a chunk in the wrong order
  kPlanSwapsSlots,      // two sequences change slots
  kPlanSamplesEarly,    // samples from the row before
  kPlanWrongPosition,   // keys the sample by another position
  kPlanLosesStates,     // a slot's token states are not sent
  kPlanWrongTolerance,  // prunes for a request that keeps all
  kPlanSwapsToOther,    // swaps a slot out to where another one is
  kPlanForgetsSwapIn,   // lets a sequence go on without what was swapped out
  kPlanKeepsSnapshot,   // forgets to drop a snapshot
  kPlanDropsEarly,      // drops a snapshot that is started from
  kPlanForgetsStart,    // forgets what a sequence starts from
  // What the engine is told.
  kOverBudget,        // believes in a larger batch,
  kOverRows,          // in more rows of logits,
  kOverSlots,         // in more slots,
  kOverContext,       // in a longer context,
  kOverPool,          // in a larger pool
  kIgnoreCancel,      // a cancellation is not heard
  kIgnoreDeadline,    // deadlines are not heard
  kIgnoreQueueLimit,  // a limit of the queue is not heard
  kIgnoreStall,       // nor the time that a reader has
  kLoseWakeup,        // an acknowledgement is not heard
  kRepeatWakeup,      // an acknowledgement is heard twice
  kIgnoreWindow,      // a flow window is not heard
  kWrongSeed,         // sampling uses another seed
  kAcceptTwice,       // an id that runs is accepted again
  // What it delivers.
  kDropToken,        // a token is lost after a preemption
  kRepeatToken,      // a token is delivered again after a preemption
  kMixStreams,       // tokens of two requests are swapped
  kForgetProgress,   // a prompt log-probability is delivered twice
  kLoseFinish,       // an end is not delivered
  kRepeatFinish,     // an end is delivered twice
  kWrongReason,      // an end at the limit is called a stop
  kBlameReader,      // a stalled reader is called a deadline
  kWrongStatistics,  // a token is not counted
  kLowCertificate,   // less mass is reported than one eviction had
  kCount
};

inline constexpr auto kBugCount = static_cast<int>(Bug::kCount);

inline constexpr char kBugNames[] =
    "none free_twice leak_on_release leak_on_evict share_page swap_heads swap_pages "
    "evict_early forget_to_evict revive_page lose_page overwrite keep_slot release_neighbour "
    "skip_page_edge write_behind write_freed spoil_swapped swap_into_old swap_disorder "
    "forget_window forget_bounds share_uncounted share_twice share_less overstate_free "
    "overstate_live wrong_logit_rows stale_sample swap_samples stale_states forget_count "
    "wrong_windows overstate_sole plan_keeps_slot plan_releases_early plan_skips_token "
    "plan_repeats_token plan_swaps_tokens plan_swaps_slots plan_samples_early "
    "plan_wrong_position plan_loses_states plan_wrong_tolerance plan_swaps_to_other "
    "plan_forgets_swap_in plan_keeps_snapshot plan_drops_early plan_forgets_start over_budget "
    "over_rows over_seats over_context over_pool ignore_cancel ignore_deadline "
    "ignore_queue_limit ignore_stall lose_wakeup repeat_wakeup ignore_window wrong_seed "
    "accept_twice drop_token repeat_token mix_streams forget_progress lose_finish "
    "repeat_finish wrong_reason blame_reader wrong_statistics low_certificate";

inline std::string Name(Bug bug) { return NameIn(kBugNames, bug); }

// kCount: there is none of that name.
inline Bug BugOf(std::string_view name) {
  int i = 0;
  while (i < kBugCount && Name(static_cast<Bug>(i)) != name) ++i;
  return static_cast<Bug>(i);
}

}  // namespace fox::sim
