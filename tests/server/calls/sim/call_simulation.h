// CallSimulation: one seed is one day of random clients over the real call layer and engine, in one
// thread with a simulated clock. Each thread that works for a call is an actor that the day lets
// act; while one actor is inside a call's format or transport, where no lock is held, others act,
// too: so a reader closes, a write returns, a request is aborted at every point. Deterministic: a
// seed that fails fails again. Phases: a load; then no new calls, and every call must end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fox::sim {

// Counts of a day. Over many days each must have happened.
enum class CallMark : uint8_t {
  kEvents,           // whatever an actor did
  kCalls,            // started
  kRefusedCalls,     // at the start, for lack of room
  kTokenizing,       // calls without prompts
  kMalformed,        // messages that the format refuses
  kInvalidPrompts,   // prompts that it refuses
  kTakenIds,         // request ids that were running
  kGrammars,         // prompts that waited for their grammar
  kStreams,          // answered in full
  kWholeAnswers,     // answered in full, at once
  kFailures,         // answered with a failure
  kAborts,           // of prompts by their id
  kAbortsBeforeIds,  // before the engine knew the prompt
  kDeadlines,        // failures by a deadline
  kAnswersUnread,    // failures because unread answers filled the budget
  kAbandonedWrites,  // writes in flight that were cut off for it
  kClosedConverting, // readers that left while the message was being converted
  kClosedRunning,    // while the engine worked
  kClosedDraining,   // when the transport had the end
  kStalls,           // readers cut off because they did not read
  kKeepAlives,       // silent streams that got a sign of life
  kInterrupts,       // actors that acted inside another one's work
  kHangs,            // days whose engine hung at the end
  kExecutorFaults,   // days whose executor failed at the end
  kDrains,           // days that ended with a drain
  kCount
};
inline constexpr auto kCallMarkCount = static_cast<size_t>(CallMark::kCount);
std::string Name(CallMark mark);

class CallMarks {
 public:
  int64_t& operator[](CallMark mark) { return counts_[static_cast<size_t>(mark)]; }
  int64_t operator[](CallMark mark) const { return counts_[static_cast<size_t>(mark)]; }
  void Add(const CallMarks& other) {
    for (size_t i = 0; i < kCallMarkCount; ++i) counts_[i] += other.counts_[i];
  }

 private:
  std::array<int64_t, kCallMarkCount> counts_ = {};
};

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

CallReport SimulateCalls(const CallDayOptions& options);

// The seed, the operation, the violation, and the command that shows it.
std::string Describe(const CallDayOptions& options, const CallReport& report);

}  // namespace fox::sim
