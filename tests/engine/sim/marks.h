// Marks: the events of simulated days, counted. Over many seeds each must have happened.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

namespace fox::sim {

// How often each kind of event happened; Kind is an enum whose last value is kCount.
template <typename Kind>
class MarkCounts {
 public:
  int64_t& operator[](Kind mark) { return counts_[static_cast<size_t>(mark)]; }
  int64_t operator[](Kind mark) const { return counts_[static_cast<size_t>(mark)]; }
  void Add(const MarkCounts& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  }

 private:
  std::array<int64_t, static_cast<size_t>(Kind::kCount)> counts_ = {};
};

// The mark's word in `names`, which has one for each mark in order.
template <typename Kind>
std::string NameIn(const char* names, Kind mark) {
  std::istringstream words(names);
  std::string name;
  for (int i = 0; i <= static_cast<int>(mark); ++i) words >> name;
  return name;
}

// The first marks are events: a request, token or page entered or left the engine. Steps and checks
// are no events.
enum class Mark : uint8_t {
  kSubmitted,     // requests, including refused ones
  kCancelled,     // of requests that had not ended
  kAcknowledged,  // calls
  kTokens,        // delivered
  kScores,        // prompt log-probabilities delivered
  kWindows,       // reports of kept windows
  kEnded,         // of accepted requests, each once
  kRefused,       // instead
  kPagesTaken,
  kPagesEvicted,
  kPagesReleased,
  kEvents,  // how many marks are events; the sum of them
  kSteps,
  kPreemptions,
  kPrunesNothing,       // requests that must not be evicted from
  kGroups,              // requests in groups of several
  kInvalid,             // refused as such
  kIdAgain,             // an id that had ended came again
  kFinished,            // at a limit
  kStopped,             // by a token
  kExpired,             // by a deadline while running or waiting
  kMissesDeadline,      // before its deadline, which it could not meet
  kDoesNotFit,          // the pool is too small for it alone
  kNumerical,           // failures
  kDisplaced,           // by another client
  kStalled,             // readers that were too slow,
  kTooManyStalled,      // or one too many of them
  kCancelledWaiting,    // cancelled before a start,
  kCancelledRunning,    // while it ran,
  kCancelledPreempted,  // after it had lost its pages once
  kPauses,              // a window was full
  kPreemptedPaused,     // requests that wait for readers without pages, by step
  kBestEffort,          // plans of slow readers beside others
  kDueSlots,            // clients that waited so long for a running slot that another gives one up
  kUrgentFirst,         // starts before a less urgent request that has waited longer,
  kUrgentLater,         // or while a more urgent one waits: it has waited longest, or finds room
  kFaults,              // of the executor, at a submission
  kLateFaults,          // at a collection
  kSampled,             // by the executor
  kFedSamples,          // before they were collected
  kProcessedSamples,    // of those: with penalties, biases or masks
  kRestoredStates,      // penalties that went on after a preemption or the prompt's scores
  kReturns,             // preempted with a plan in flight and back again
  kSnapshots,           // taken,
  kSnapshotsDropped,    // and dropped
  kPagesShared,         // by snapshots and starts
  kCachedStarts,        // requests that started from a snapshot
  kSaves,               // of snapshots on their way to the store,
  kLoads,               // and back
  kStoreFaults,         // writes and reads that failed
  kTurns,               // requests that go on from an answer
  kFlushes,             // of the prefix cache
  kCancelledAll,        // days that ended so,
  kFloods,              // or so
  kCount
};

inline constexpr auto kMarkCount = static_cast<size_t>(Mark::kCount);

inline constexpr char kMarkNames[] =
    "submitted cancelled acknowledged tokens scores windows ended refused pages_taken "
    "pages_evicted pages_released events steps preemptions prunes_nothing groups invalid "
    "id_again finished stopped expired misses_deadline does_not_fit numerical displaced "
    "stalled too_many_stalled cancelled_waiting cancelled_running cancelled_preempted pauses "
    "preempted_paused best_effort due_slots urgent_first urgent_later faults late_faults "
    "sampled fed_samples processed_samples restored_states returns snapshots "
    "snapshots_dropped pages_shared cached_starts saves loads store_faults turns flushes "
    "cancelled_all floods";

inline std::string Name(Mark mark) { return NameIn(kMarkNames, mark); }

class Marks : public MarkCounts<Mark> {
 public:
  // Sets kEvents.
  void CountEvents() {
    int64_t sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(Mark::kEvents); ++i) {
      sum += (*this)[static_cast<Mark>(i)];
    }
    (*this)[Mark::kEvents] = sum;
  }
};

}  // namespace fox::sim
