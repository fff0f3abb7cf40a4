// BpeMerger: the merge rules of a byte-level BPE and their application to one pre-token. The pair
// of neighbours whose rule has the lowest rank merges first, the leftmost among equals. Cost
// O(n log n) in the length of the pre-token, also if it repeats itself. Read byte_level_bpe.h next.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace fox {

// Immutable once all rules are added; Merge may then be called from any thread.
class BpeMerger {
 public:
  // Adds the rule of the next rank. A pair that has a rule already takes the new rank, as in the
  // reference implementations. REQUIRES: the text of `product` is the texts of `left` and `right`
  // joined.
  void AddRule(int32_t left, int32_t right, int32_t product);

  // Memory that one thread reuses from pre-token to pre-token.
  class Workspace {
   public:
    std::vector<int32_t> symbols;  // for the caller: a pre-token

   private:
    friend class BpeMerger;
    std::vector<int32_t> previous_, next_;  // neighbours of a position, kNone at the ends
    std::vector<int32_t> rank_;             // of the pair that starts at a position
    std::vector<uint64_t> heap_;            // pairs, the next one first: rank << 32 | position
  };

  // Merges `symbols` in place until no rule applies.
  void Merge(std::vector<int32_t>* symbols, Workspace* workspace) const;

 private:
  static constexpr int32_t kNone = -1;

  // The rank of the pair's rule; kNoRank if it has none.
  int32_t RankOf(int32_t left, int32_t right) const;
  void MergeShort(std::vector<int32_t>* symbols, Workspace* workspace) const;
  void MergeLong(std::vector<int32_t>* symbols, Workspace* workspace) const;
  void Push(int32_t position, int32_t rank, Workspace* workspace) const;
  void JoinAt(int32_t position, std::vector<int32_t>* symbols, Workspace* workspace) const;

  absl::flat_hash_map<uint64_t, int32_t> rank_of_pair_;  // key: left << 32 | right
  std::vector<int32_t> product_of_rank_;
};

}  // namespace fox
