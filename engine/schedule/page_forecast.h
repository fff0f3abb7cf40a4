// PageForecast: how many pages a sequence is likely to hold at a length, learnt from what others
// kept. Heads that forget keep a window, those that do not keep everything, so what a sequence
// keeps of 64 more tokens falls with its position: one running mean and variance per octave of
// positions. Positions beyond all that were seen count as the longest one seen; before the
// first, as kept whole. A forecast is never a licence: PageLedger says what may be spent. Read
// scheduler.h next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fox {

class PageForecast {
 public:
  struct Estimate {
    double pages = 0;
    double deviation = 0;  // standard; of what is still to come
  };

  // `lists_per_slot`: pages that a sequence takes every 64 tokens.
  PageForecast(int64_t lists_per_slot, int32_t slots)
      : lists_(static_cast<double>(lists_per_slot)), slots_(static_cast<size_t>(slots)) {}

  // The slot's sequence has so many tokens and holds so many pages.
  void Observe(int32_t slot, int64_t tokens, int64_t pages);
  // The slot is empty from now on.
  void Release(int32_t slot);

  // Of a sequence with so many tokens; not below what it shows itself, if it has a slot (else -1).
  Estimate At(int64_t tokens, int32_t slot) const;
  // That each token behind that many adds.
  double PerToken(int64_t tokens) const;

 private:
  // Of positions [2^k, 2^(k+1)) in pages; octave 0 has position 0, too.
  static constexpr int kOctaves = 32;
  static constexpr double kEnough = 0.25;  // of an octave, to count as shown
  // What came so many requests ago counts little.
  static constexpr double kMemory = 64;

  struct Octave {
    double weight = 0;  // of the samples so far, at most kMemory; 1: a sequence that passed it all
    double kept = 1;    // pages kept of a page taken, mean
    double variance = 0;
  };
  struct Slot {
    int64_t rows = 0;   // page rows so far
    double pages = 0;   // held
    double gained = 0;  // of them in the octave of the last row
  };

  static int OctaveOf(int64_t row);
  // The last octave up to that one of which enough was seen.
  const Octave& Known(int octave) const;
  void Learn(int octave, int64_t rows, double gained);
  Estimate Between(int64_t from, int64_t to) const;

  const double lists_;
  std::vector<Slot> slots_;
  std::array<Octave, kOctaves> octaves_;
};

}  // namespace fox
