// PrefixCache: how snapshots go to a store and come back. Read prefix_cache.h first.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/schedule/prefix_cache.h"
#include "engine/store/digest.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

// Saving a snapshot between two requests could delay the next one.
constexpr Seconds kSaveAfter = 2.0;
// A sequence waits for a read at most as long as computing its tokens is expected to take, within
// these bounds; the longest until a step was measured.
constexpr Seconds kShortestRead = 0.05, kLongestRead = 2.0;

}  // namespace

// True if the sequence waits for a longer snapshot than Match has found. It asks once: a snapshot
// that was read and had to go again would otherwise come back for ever.
bool PrefixCache::AwaitsRead(Sequence* sequence) {
  if (!transfers_.on()) return false;
  StoredPrefix& stored = sequence->stored_;
  const int64_t found = sequence->prefix_.found;
  if (!std::exchange(stored.looked_up, true)) {
    const auto& [salt, log_tolerance] = NamespaceOf(*sequence);
    stored.tokens =
        transfers_.store()->Find(salt, log_tolerance, sequence->tokens, sequence->chunks.unit,
                                 found + min_stored_ - 1, Limit(*sequence));
    const Seconds computing = times_.Prefill(stored.tokens - found);
    stored.until =
        now_ + (computing > 0 ? std::clamp(computing, kShortestRead, kLongestRead) : kLongestRead);
  }
  if (stored.tokens <= found || now_ >= stored.until) return false;
  if (stored.read == 0) {
    const auto begin = sequence->tokens.begin();
    stored.read = transfers_.Read(
        {sequence->request.cache_salt, sequence->log_tolerance, {begin, begin + stored.tokens}},
        sequence->request.tenant);
  } else if (!transfers_.IsReading(stored.read)) {
    stored.tokens = 0;  // it failed, or found no room
    return false;
  }
  next_event_ = std::min(next_event_, stored.until);
  return true;
}

bool PrefixCache::IsWorthSaving(const Snapshot& snapshot) const {
  return transfers_.on() && snapshot.node != nullptr && snapshot.node->tokens >= min_stored_;
}

Seconds PrefixCache::SaveTime(const Snapshot& snapshot) const {
  return save_all_ ? now_ : snapshot.used + kSaveAfter;
}

// True if the snapshot is stored, or will be.
bool PrefixCache::Save(int32_t slot) {
  Snapshot& snapshot = At(slot);
  if (snapshot.kept_pages < 0 || !transfers_.Fits(snapshot.kept_pages)) return false;
  const auto& [salt, log_tolerance] = tree_.NamespaceOf(*snapshot.node);
  StoredSnapshot what{salt, log_tolerance, PrefixTree::TokensOf(*snapshot.node),
                      snapshot.kept_pages, snapshot.max_log_evicted_mass};
  const int64_t tokens = snapshot.node->tokens;
  snapshot.offered =
      transfers_.IsSaving(what) ||
      transfers_.store()->Find(salt, log_tolerance, what.tokens, tokens, tokens - 1, tokens) > 0;
  if (snapshot.offered) return true;
  if (!transfers_.MaySave()) return false;
  transfers_.Save(slot, std::move(what));
  snapshot.offered = true;
  return true;
}

void PrefixCache::SaveOne() {
  if (!transfers_.on()) return;
  int32_t best = -1;
  double lowest = std::numeric_limits<double>::infinity();
  for (const auto& [score, slot] : Scores()) {
    const Snapshot& snapshot = At(slot);
    if (snapshot.offered || snapshot.kept_pages < 0 || !IsWorthSaving(snapshot)) continue;
    const Seconds due = SaveTime(snapshot);
    if (due > now_) {
      next_event_ = std::min(next_event_, due);
    } else if (score < lowest) {
      lowest = score;
      best = slot;
    }
  }
  if (best >= 0 && transfers_.MaySave() && Save(best)) next_event_ = now_;  // for the next one
}

int64_t PrefixCache::unoffered() const {
  return std::count_if(
      snapshots_by_slot_.begin(), snapshots_by_slot_.end(),
      [this](const Snapshot& snapshot) { return !snapshot.offered && IsWorthSaving(snapshot); });
}

int64_t PrefixCache::Land(int64_t room) {
  if (transfers_.Poll()) ++version_;
  int64_t taken = 0;
  for (const SnapshotTransfers::Arrival& arrival : transfers_.TakeArrivals()) {
    const int64_t before = dropped_pages_;
    const bool lands = LandOne(arrival, room - taken);
    taken -= dropped_pages_ - before;
    if (lands) {
      taken += arrival.what.pages;
      ++stats_.landed;
    } else {
      transfers_.GiveUp(arrival);
    }
  }
  return taken;
}

// False: another sequence has computed the prefix meanwhile, or there is no room.
bool PrefixCache::LandOne(const SnapshotTransfers::Arrival& arrival, int64_t room) {
  const StoredSnapshot& what = arrival.what;
  const auto tokens = static_cast<int64_t>(what.tokens.size());
  const PrefixTree::CacheNamespace cache_namespace = {what.cache_salt, what.log_tolerance};
  const std::vector<PrefixTree::Node*> known = tree_.Find(cache_namespace, what.tokens, tokens);
  if (!known.empty() && known.back()->tokens == tokens && known.back()->snapshot >= 0) return false;
  const int64_t before = dropped_pages_;
  if (!MakeRoom(what.pages)) return false;
  Evict(what.pages - room - (dropped_pages_ - before));
  if (room + dropped_pages_ - before < what.pages) return false;
  PrefixTree::Node* const node =
      tree_.Find(cache_namespace, what.tokens, tokens, /*insert=*/true).back();
  node->snapshot = free_slots_.back();
  free_slots_.pop_back();
  Snapshot& landed = At(node->snapshot) = {node, what.pages, arrival.tenant, now_};
  landed.taken = plan_;
  landed.kept_pages = what.pages;
  landed.max_log_evicted_mass = what.max_log_evicted_mass;
  landed.offered = true;
  ++size_;
  ++version_;
  transfers_.Load(arrival, node->snapshot);
  return true;
}

void PrefixCache::Clear(const std::string& only) {
  for (Snapshot& snapshot : snapshots_by_slot_) {
    if (snapshot.node == nullptr) continue;
    const std::string& cache_salt = tree_.NamespaceOf(*snapshot.node).first;
    if (!only.empty() && NamespaceName(cache_salt) != only) continue;
    snapshot.doomed = has_doomed_ = true;
  }
  if (!transfers_.on()) return;
  transfers_.Abandon();
  transfers_.store()->Clear(only);
  ++version_;
}

}  // namespace fox
