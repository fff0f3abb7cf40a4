// Two algorithms with one result. A short pre-token rescans an array of ranks after each merge. A
// long one keeps a linked list of symbols and a heap of the places where a rule applies. See
// bpe_merger.h.
#include "models/tokenizer/bpe_merger.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
// Up to this many symbols rescanning is faster than keeping a heap.
constexpr size_t kMaxShort = 48;

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

void BpeMerger::AddRule(int32_t left, int32_t right, int32_t product) {
  FOX_CHECK(left >= 0 && right >= 0 && product >= 0);
  FOX_CHECK(product_of_rank_.size() < static_cast<size_t>(kNoRank));
  rank_of_pair_[PairKey(left, right)] = static_cast<int32_t>(product_of_rank_.size());
  product_of_rank_.push_back(product);
}

int32_t BpeMerger::RankOf(int32_t left, int32_t right) const {
  const auto it = rank_of_pair_.find(PairKey(left, right));
  return it == rank_of_pair_.end() ? kNoRank : it->second;
}

void BpeMerger::Merge(std::vector<int32_t>* symbols, Workspace* workspace) const {
  if (symbols->size() <= kMaxShort) {
    MergeShort(symbols, workspace);
  } else {
    MergeLong(symbols, workspace);
  }
}

void BpeMerger::MergeShort(std::vector<int32_t>* symbols, Workspace* workspace) const {
  std::vector<int32_t>& ids = *symbols;
  std::vector<int32_t>& rank = workspace->rank_;
  rank.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) rank.push_back(RankOf(ids[i], ids[i + 1]));
  while (!rank.empty()) {
    const auto best = std::min_element(rank.begin(), rank.end());
    if (*best == kNoRank) return;
    const auto at = static_cast<size_t>(best - rank.begin());
    ids[at] = product_of_rank_[static_cast<size_t>(*best)];
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    rank.erase(best);
    if (at > 0) rank[at - 1] = RankOf(ids[at - 1], ids[at]);
    if (at < rank.size()) rank[at] = RankOf(ids[at], ids[at + 1]);
  }
}

void BpeMerger::Push(int32_t position, int32_t rank, Workspace* workspace) const {
  workspace->rank_[static_cast<size_t>(position)] = rank;
  if (rank == kNoRank) return;
  workspace->heap_.push_back(PairKey(rank, position));
  std::push_heap(workspace->heap_.begin(), workspace->heap_.end(), std::greater<>());
}

void BpeMerger::JoinAt(int32_t position, std::vector<int32_t>* symbols,
                       Workspace* workspace) const {
  std::vector<int32_t>& ids = *symbols;
  const auto at = static_cast<size_t>(position);
  FOX_CHECK(workspace->next_[at] != kNone);
  const auto right = static_cast<size_t>(workspace->next_[at]);
  ids[at] = product_of_rank_[static_cast<size_t>(workspace->rank_[at])];
  ids[right] = kNone;
  workspace->rank_[right] = kNoRank;
  const int32_t after = workspace->next_[right];
  const int32_t before = workspace->previous_[at];
  workspace->next_[at] = after;
  if (after != kNone) workspace->previous_[static_cast<size_t>(after)] = position;
  Push(position, after == kNone ? kNoRank : RankOf(ids[at], ids[static_cast<size_t>(after)]),
       workspace);
  if (before != kNone) Push(before, RankOf(ids[static_cast<size_t>(before)], ids[at]), workspace);
}

void BpeMerger::MergeLong(std::vector<int32_t>* symbols, Workspace* workspace) const {
  std::vector<int32_t>& ids = *symbols;
  FOX_CHECK(ids.size() < static_cast<size_t>(kNoRank));
  const auto size = static_cast<int32_t>(ids.size());
  Workspace& w = *workspace;
  FOX_CHECK(w.heap_.empty());
  w.previous_.resize(ids.size());
  w.next_.resize(ids.size());
  w.rank_.assign(ids.size(), kNoRank);
  for (int32_t i = 0; i < size; ++i) {
    const auto at = static_cast<size_t>(i);
    w.previous_[at] = i - 1;  // kNone for the first
    w.next_[at] = i + 1 < size ? i + 1 : kNone;
    if (i + 1 < size) Push(i, RankOf(ids[at], ids[at + 1]), workspace);
  }
  while (!w.heap_.empty()) {
    std::pop_heap(w.heap_.begin(), w.heap_.end(), std::greater<>());
    const auto rank = static_cast<int32_t>(w.heap_.back() >> 32);
    const auto position = static_cast<int32_t>(w.heap_.back() & UINT32_MAX);
    w.heap_.pop_back();
    const bool outdated = w.rank_[static_cast<size_t>(position)] != rank;
    if (!outdated) JoinAt(position, symbols, workspace);
  }
  std::erase(ids, kNone);
}

}  // namespace fox
