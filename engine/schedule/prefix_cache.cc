// PrefixCache: how snapshots are taken, found, started from and dropped. Read prefix_cache.h first.
#include "engine/schedule/prefix_cache.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/schedule/policy.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

int64_t PageEnd(int64_t tokens) { return tokens / kPageTokens * kPageTokens; }

// The last length up to `tokens` at which a snapshot may lie.
int64_t SnapshotEnd(const Sequence& sequence, int64_t tokens) {
  return tokens / sequence.chunks.unit * sequence.chunks.unit;
}

// Tokens from which the sequence's snapshots are taken. They must be known, because the tree finds
// them by value, and fed in chunks, because decoded tokens may have other bits.
int64_t SnapshotTokens(const Sequence& sequence) {
  return sequence.chunks.InChunks(sequence.prompt_tokens,
                                  static_cast<int64_t>(sequence.tokens.size()));
}

// True if the sequence may leave a snapshot of its first `tokens` tokens.
bool MayLieAt(const Sequence& sequence, int64_t tokens) {
  return tokens <= SnapshotTokens(sequence) && tokens % sequence.chunks.unit == 0;
}

}  // namespace

PrefixCache::PrefixCache(const ExecutorLimits& limits, const EngineOptions& options,
                         PageLedger& ledger, const ServiceTimes& times, SnapshotStore* store)
    : first_slot_(limits.slots()),
      budget_(limits.snapshot_slots > 0
                  ? static_cast<int64_t>(options.prefix_cache_share *
                                         static_cast<double>(limits.num_pages))
                  : 0),
      interval_(options.prefix_cache_interval),
      min_stored_(options.min_stored_tokens),
      ledger_(ledger),
      times_(times),
      transfers_(limits, budget_ > 0 ? store : nullptr),
      snapshots_by_slot_(static_cast<size_t>(limits.snapshot_slots)) {
  for (int32_t i = limits.snapshot_slots - 1; i >= 0; --i) free_slots_.push_back(first_slot_ + i);
}

void PrefixCache::Check() const {
  int64_t size = 0;
  for (size_t i = 0; i < snapshots_by_slot_.size(); ++i) {
    const Snapshot& snapshot = snapshots_by_slot_[i];
    if (snapshot.node == nullptr) continue;
    FOX_CHECK(snapshot.node->snapshot == first_slot_ + static_cast<int32_t>(i));
    FOX_CHECK(snapshot.taken <= plan_ && snapshot.pinned <= plan_ && snapshot.pages >= 0);
    ++size;
  }
  FOX_CHECK(size_ == size);
  FOX_CHECK(free_slots_.size() + static_cast<size_t>(size) == snapshots_by_slot_.size());
  FOX_CHECK(dropped_pages_ >= 0 && unsure_pages_ >= 0);
}

void PrefixCache::BeginPlan(Seconds now) {
  now_ = now;
  next_event_ = kNever;
  if (!has_doomed_) return;
  has_doomed_ = false;
  for (size_t i = 0; i < snapshots_by_slot_.size(); ++i) {
    const Snapshot& snapshot = snapshots_by_slot_[i];
    if (snapshot.node == nullptr || !snapshot.doomed) continue;
    if (IsInUse(snapshot)) {
      has_doomed_ = true;  // a plan takes it or starts from it: drop it later
    } else {
      Drop(first_slot_ + static_cast<int32_t>(i), /*save=*/false);
    }
  }
}

void PrefixCache::Flush() {
  for (Snapshot& snapshot : snapshots_by_slot_) {
    if (snapshot.node != nullptr) snapshot.doomed = has_doomed_ = true;
  }
}

void PrefixCache::Follow(Sequence* sequence) {
  PrefixState& state = sequence->prefix_;
  if (!Uses(*sequence) || sequence->slot < 0) return;
  const int64_t tokens = PageEnd(sequence->computed);
  const bool prompt_done = sequence->computed >= sequence->prompt_tokens;
  if (tokens > state.last && MayLieAt(*sequence, tokens)) {
    const bool stops = state.stops.erase(tokens) > 0;
    if (stops) ++version_;  // waiting sequences match again, even if there is no room for it
    if (stops || tokens - state.last >= interval_ ||
        (prompt_done && state.last < SnapshotEnd(*sequence, sequence->prompt_tokens))) {
      Insert(sequence, tokens);
    }
  }
  if (prompt_done && state.claims) Unclaim(sequence);
}

// The longest snapshot that the sequence may start from. The last token is left to compute, for its
// logits, and so are tokens whose log-probabilities are still to be delivered.
int64_t PrefixCache::Limit(const Sequence& sequence) {
  const int64_t limit = SnapshotTokens(sequence) - sequence.chunks.min_left();
  return sequence.wants_prompt_rows() ? std::min(limit, sequence.prompt_rows_done) : limit;
}

bool PrefixCache::WillReach(const Sequence& sequence, const PrefixTree::Node& node) {
  const PrefixState& state = sequence.prefix_;
  if (node.tokens > sequence.computed) return true;
  if (state.stops.count(node.tokens) > 0) return true;
  return node.tokens == PageEnd(sequence.prompt_tokens) && node.tokens > state.last &&
         node.tokens == PageEnd(sequence.computed);
}

bool PrefixCache::Match(Sequence* sequence) {
  PrefixState& state = sequence->prefix_;
  const auto length = static_cast<int64_t>(sequence->tokens.size());
  if (!Uses(*sequence) || sequence->slot >= 0) return false;
  if (state.version == version_ && state.length == length) {
    return state.waits || AwaitsRead(sequence);
  }
  state = {};
  state.version = version_;
  state.length = length;
  const std::vector<PrefixTree::Node*> path =
      tree_.Find(NamespaceOf(*sequence), sequence->tokens, Limit(*sequence));
  if (!path.empty()) state.known = SnapshotEnd(*sequence, path.back()->tokens);
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    if ((*node)->tokens % sequence->chunks.unit != 0) continue;
    Sequence* const other = (*node)->computing;
    if ((*node)->snapshot >= 0) {
      state.found = (*node)->tokens;
      state.snapshot = (*node)->snapshot;
      break;
    }
    if (state.waits || other == nullptr || other->priority > sequence->priority) continue;
    if (!WillReach(*other, **node)) continue;
    state.waits = true;
    // At the end of its prompt `other` leaves a snapshot anyway.
    if ((*node)->tokens < PageEnd(other->prompt_tokens)) {
      other->prefix_.stops.insert((*node)->tokens);
    }
  }
  AddStops(sequence);
  return AwaitsRead(sequence) || state.waits;
}

// Asks for snapshots of the sequence's own prompt: where it parts from the known prefixes; where
// its siblings will start, if that is before the last page end; and at the end of a long prompt
// whose last page end is no place for a snapshot.
void PrefixCache::AddStops(Sequence* sequence) {
  PrefixState& state = sequence->prefix_;
  if (state.known > state.found) state.stops.insert(state.known);
  const int64_t last_page = PageEnd(sequence->prompt_tokens);
  const int64_t end = SnapshotEnd(*sequence, Limit(*sequence));
  if (sequence->group->members.size() > 1 && end > state.found && end < last_page) {
    state.stops.insert(end);
  }
  const int64_t prompt_end = SnapshotEnd(*sequence, sequence->prompt_tokens);
  if (prompt_end < last_page && prompt_end - state.found >= kMinSnapshotSaving) {
    state.stops.insert(prompt_end);
  }
}

int64_t PrefixCache::Lock(const Sequence& sequence) {
  if (sequence.prefix_.snapshot >= 0) At(sequence.prefix_.snapshot).pinned = plan_;
  return sequence.prefix_.found;
}

void PrefixCache::Start(Sequence* sequence) {
  if (!Uses(*sequence)) return;
  PrefixState& state = sequence->prefix_;
  FOX_CHECK(sequence->slot >= 0 && sequence->computed == state.found);
  stats_.queried_tokens += sequence->length();
  if (state.snapshot >= 0) {
    Snapshot& snapshot = At(state.snapshot);
    FOX_CHECK(snapshot.node != nullptr && snapshot.node->tokens == state.found);
    snapshot.used = now_;
    starts_.push_back({state.snapshot, sequence->slot, state.found});
    ledger_.Share(state.snapshot);
    stats_.found_tokens += state.found;
    if (!sequence->started) sequence->stats.cached_tokens = state.found;
  }
  state.last = state.found;
  Claim(sequence);
}

void PrefixCache::Claim(Sequence* sequence) {
  FOX_CHECK(sequence->slot >= 0 && !sequence->prefix_.claims);
  const int64_t limit =
      std::min<int64_t>(sequence->prompt_tokens, static_cast<int64_t>(sequence->tokens.size()) - 1);
  for (PrefixTree::Node* node : tree_.Find(NamespaceOf(*sequence), sequence->tokens, limit, true)) {
    if (node->tokens <= sequence->computed) continue;
    if (node->computing == nullptr || !WillReach(*node->computing, *node)) {
      node->computing = sequence;
    }
  }
  sequence->prefix_.claims = true;
  ++version_;
}

void PrefixCache::Unclaim(Sequence* sequence) {
  if (!std::exchange(sequence->prefix_.claims, false)) return;
  ++version_;
  const std::vector<PrefixTree::Node*> path =
      tree_.Find(NamespaceOf(*sequence), sequence->tokens, sequence->prompt_tokens);
  for (PrefixTree::Node* node : path) {
    if (node->computing == sequence) node->computing = nullptr;
  }
  if (!path.empty()) tree_.Prune(path.back());
}

int64_t PrefixCache::CutChunk(const Sequence& sequence, int64_t count) const {
  const auto stop = sequence.prefix_.stops.upper_bound(sequence.computed);
  return stop == sequence.prefix_.stops.end() ? count : std::min(count, *stop - sequence.computed);
}

void PrefixCache::Insert(Sequence* sequence, int64_t tokens) {
  FOX_CHECK(sequence->slot >= 0 && tokens > 0 && tokens % sequence->chunks.unit == 0);
  sequence->prefix_.last = tokens;
  const PrefixTree::CacheNamespace cache_namespace = NamespaceOf(*sequence);
  const std::vector<PrefixTree::Node*> known =
      tree_.Find(cache_namespace, sequence->tokens, tokens);
  if (!known.empty() && known.back()->tokens == tokens && known.back()->snapshot >= 0) {
    At(known.back()->snapshot).used = now_;
    return;
  }
  const int64_t pages = ledger_.held(sequence->slot);
  if (!MakeRoom(pages)) return;
  // Only now, because dropping snapshots removes nodes that are not needed otherwise.
  PrefixTree::Node* const node =
      tree_.Find(cache_namespace, sequence->tokens, tokens, /*insert=*/true).back();
  node->snapshot = free_slots_.back();
  free_slots_.pop_back();
  Snapshot& taken = At(node->snapshot) = {node, pages, sequence->request.tenant, now_};
  taken.taken = plan_;
  ++size_;
  ++version_;
  snapshots_.push_back({sequence->slot, node->snapshot, tokens});
  ledger_.Share(sequence->slot);
}

bool PrefixCache::MakeRoom(int64_t pages) {
  if (pages > budget_) return false;
  const int64_t excess =
      ledger_.shared() + transfers_.loaded_pages() + pages - dropped_pages_ - budget_;
  if (excess > 0) Evict(excess);
  if (free_slots_.empty()) {
    if (const int32_t victim = Victim(); victim >= 0) Drop(victim, /*save=*/true);
  }
  return !free_slots_.empty();
}

bool PrefixCache::evicting() const {
  return unsure_pages_ > 0 || std::any_of(in_flight_.begin(), in_flight_.end(),
                                          [](InFlight plan) { return plan.unsure_pages > 0; });
}

int64_t PrefixCache::Evict(int64_t pages) {
  int64_t freed = 0;
  int64_t unsure = unsure_pages_;
  for (const InFlight& plan : in_flight_) unsure += plan.unsure_pages;
  while (freed + unsure < pages) {
    const int32_t victim = Victim();
    if (victim < 0) break;
    const int64_t before = unsure_pages_;
    freed += Drop(victim, /*save=*/true);
    unsure += unsure_pages_ - before;
  }
  return freed;
}

// For each snapshot its idle time x own pages / tokens that it saves, times all pages of its
// tenant: so a tenant's flood of new prefixes drops its own snapshots before those of others. With
// slots.
std::vector<std::pair<double, int32_t>> PrefixCache::Scores() const {
  std::vector<std::pair<double, int32_t>> scores;
  std::map<uint64_t, double> pages_of;  // by tenant
  for (size_t i = 0; i < snapshots_by_slot_.size(); ++i) {
    const Snapshot& snapshot = snapshots_by_slot_[i];
    if (snapshot.node == nullptr) continue;
    pages_of[snapshot.tenant] +=
        static_cast<double>(ledger_.held(first_slot_ + static_cast<int32_t>(i))) + 1;
  }
  for (size_t i = 0; i < snapshots_by_slot_.size(); ++i) {
    const Snapshot& snapshot = snapshots_by_slot_[i];
    if (snapshot.node == nullptr) continue;
    const PrefixTree::Node* before = snapshot.node->parent;
    while (before->parent != nullptr && before->snapshot < 0) before = before->parent;
    const int32_t slot = first_slot_ + static_cast<int32_t>(i);
    const double age = now_ - snapshot.used + 1e-3;
    const double pages = static_cast<double>(ledger_.held(slot)) + 1;
    scores.emplace_back(age * pages * pages_of[snapshot.tenant] /
                            static_cast<double>(snapshot.node->tokens - before->tokens),
                        slot);
  }
  return scores;
}

// The snapshot with the highest score that no sequence starts from; -1: none.
int32_t PrefixCache::Victim() const {
  int32_t victim = -1;
  double highest = -1;
  for (const auto& [score, slot] : Scores()) {
    if (score <= highest || IsInUse(snapshots_by_slot_[static_cast<size_t>(slot - first_slot_)]))
      continue;
    highest = score;
    victim = slot;
  }
  return victim;
}

// `save`: the store may have it.
int64_t PrefixCache::Drop(int32_t slot, bool save) {
  Snapshot& snapshot = At(slot);
  if (save && IsWorthSaving(snapshot) && !Save(slot)) ++stats_.lost;
  FOX_CHECK(snapshot.node != nullptr && !IsInUse(snapshot));
  const int64_t pages = ledger_.held(slot);
  drops_.push_back(slot);
  dropped_pages_ += pages;
  unsure_pages_ += std::max<int64_t>(snapshot.pages - pages, 0);
  PrefixTree::Node* const node = std::exchange(snapshot.node, nullptr);
  node->snapshot = -1;
  ++version_;
  tree_.Prune(node);
  free_slots_.push_back(slot);
  --size_;
  ++stats_.dropped;
  return pages;
}

void PrefixCache::Leave(Sequence* sequence, bool keep) {
  if (!Uses(*sequence)) return;
  Unclaim(sequence);
  const int64_t tokens = PageEnd(sequence->computed);
  const bool has_more = sequence->slot >= 0 && tokens > sequence->prefix_.last;
  if (keep && has_more && MayLieAt(*sequence, tokens)) Insert(sequence, tokens);
  sequence->prefix_ = {};
}

void PrefixCache::FillPlan(StepPlan* plan) {
  plan->drop_snapshots = std::exchange(drops_, {});
  plan->snapshots = std::exchange(snapshots_, {});
  plan->starts = std::exchange(starts_, {});
  transfers_.FillPlan(plan);
  const int64_t number = plan_++;
  if (plan->empty()) return;
  in_flight_.push_back({number, std::exchange(unsure_pages_, 0)});
  dropped_pages_ = 0;
}

void PrefixCache::Collected(const StepPlan& plan, const StepResult& result) {
  FOX_CHECK(!in_flight_.empty());
  const int64_t number = in_flight_.front().plan;
  in_flight_.pop_front();
  transfers_.Collected(plan);
  if (!plan.loads.empty()) next_event_ = now_;  // their buffers are free
  for (size_t i = 0; i < plan.snapshots.size(); ++i) {
    Snapshot& snapshot = At(plan.snapshots[i].to);
    if (snapshot.node == nullptr || snapshot.taken != number) continue;  // dropped since
    if (i < result.snapshots.size()) {
      snapshot.kept_pages = result.snapshots[i].live_pages();
      snapshot.max_log_evicted_mass = result.snapshots[i].max_log_evicted_mass;
    }
    snapshot.offered = snapshot.kept_pages < 0 || !transfers_.Fits(snapshot.kept_pages);
    if (!snapshot.offered && IsWorthSaving(snapshot)) {
      next_event_ = std::min(next_event_, SaveTime(snapshot));
    }
  }
}

}  // namespace fox
