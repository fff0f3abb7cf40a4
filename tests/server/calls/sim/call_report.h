// CallReport: the outcome of a simulated day, with its events counted. Over many days each must
// have happened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/engine/sim/marks.h"

namespace fox::sim {

enum class CallMark : uint8_t {
  kEvents,            // whatever an actor did
  kCalls,             // started
  kRefusedCalls,      // at the start, for lack of room
  kTokenizing,        // calls without prompts
  kMalformed,         // messages that the format refuses
  kInvalidPrompts,    // prompts that it refuses
  kTakenIds,          // request ids that were running
  kGrammars,          // prompts that waited for their grammar
  kStreams,           // answered in full
  kWholeAnswers,      // answered in full, at once
  kFailures,          // answered with a failure
  kAborts,            // of prompts by their id
  kAbortsBeforeIds,   // before the engine knew the prompt
  kDeadlines,         // failures by a deadline
  kAnswersUnread,     // failures because unread answers filled the budget
  kAbandonedWrites,   // writes in flight that were cut off for it
  kClosedConverting,  // readers that left while the message was being converted
  kClosedRunning,     // while the engine worked
  kClosedDraining,    // when the transport had the end
  kStalls,            // readers cut off because they did not read
  kKeepAlives,        // silent streams that got a sign of life
  kInterrupts,        // actors that acted inside another one's work
  kHangs,             // days whose engine hung at the end
  kExecutorFaults,    // days whose executor failed at the end
  kDrains,            // days that ended with a drain
  kCount
};
inline constexpr auto kCallMarkCount = static_cast<size_t>(CallMark::kCount);

inline constexpr char kCallMarkNames[] =
    "events calls refused_calls tokenizing malformed invalid_prompts taken_ids grammars streams "
    "whole_answers failures aborts aborts_before_ids deadlines answers_unread abandoned_writes "
    "closed_converting closed_running closed_draining stalls keep_alives interrupts hangs "
    "executor_faults drains";

inline std::string Name(CallMark mark) { return NameIn(kCallMarkNames, mark); }

using CallMarks = MarkCounts<CallMark>;

struct CallDayOptions {
  uint64_t seed = 1;
  int64_t operations = 2000;  // of the first phase
  bool print = false;         // each event, on standard output
};

struct CallReport {
  std::string violation;  // empty: none
  int64_t operation = 0;  // the last one
  uint64_t trace = 0;     // hash of all bytes that clients got
  CallMarks marks;
};

}  // namespace fox::sim
