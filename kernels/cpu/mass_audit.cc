// The audit's bookkeeping and the lost mass of one row. See mass_audit.h.
#include "kernels/cpu/mass_audit.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "kernels/core/dot.h"

namespace fox {

double MassAudit::max_excess() const {
  const std::lock_guard lock(mutex_);
  return max_excess_;
}

double MassAudit::max_bound_excess() const {
  const std::lock_guard lock(mutex_);
  return max_bound_excess_;
}

int64_t MassAudit::rows_checked() const {
  const std::lock_guard lock(mutex_);
  return rows_checked_;
}

MassAudit::List& MassAudit::ListOf(const PagedKv& kv, int64_t list) {
  return caches_.at(kv.length)[static_cast<size_t>(list)];
}

std::vector<MassAudit::List>::iterator MassAudit::ListsOf(const PagedKv& kv, int32_t slot) {
  std::vector<List>& lists = caches_[kv.length];
  lists.resize(static_cast<size_t>(kv.shape.max_slots * kv.shape.lists_per_slot()));
  return lists.begin() + kv.ListIndex(slot, 0, 0);
}

void MassAudit::BeginStep(const BatchView& batch, const PagedKv& kv) {
  const PagedKvShape& shape = kv.shape;
  std::vector<List>& lists = caches_[kv.length];
  lists.resize(static_cast<size_t>(shape.max_slots * shape.lists_per_slot()));
  const auto d = static_cast<size_t>(shape.head_dim), group = static_cast<size_t>(shape.group());
  for (int seq = 0; seq < batch.num_seqs; ++seq) {
    const auto begin = static_cast<size_t>(batch.position[seq]);
    const size_t end = begin + static_cast<size_t>(batch.row_begin[seq + 1] - batch.row_begin[seq]);
    const int64_t first = kv.ListIndex(batch.slot[seq], 0, 0);
    for (int64_t i = first; i < first + shape.lists_per_slot(); ++i) {
      List& list = lists[static_cast<size_t>(i)];
      list.complete = begin == 0 || (list.complete && list.c.size() >= begin * group);
      list.keys.resize(end * d);
      list.c.resize(end * group);
    }
  }
}

void MassAudit::Share(int32_t from, int32_t to, int64_t tokens, const PagedKv& kv) {
  const PagedKvShape& shape = kv.shape;
  for (int64_t i = 0; i < shape.lists_per_slot(); ++i) {
    List& list = ListsOf(kv, to)[i];
    list = ListsOf(kv, from)[i];
    const auto kept = static_cast<size_t>(list.complete ? tokens : 0);
    list.keys.resize(kept * static_cast<size_t>(shape.head_dim));
    list.c.resize(kept * static_cast<size_t>(shape.group()));
  }
}

void MassAudit::Forget(int32_t slot, const PagedKv& kv) {
  std::fill_n(ListsOf(kv, slot), kv.shape.lists_per_slot(), List());
}

double* MassAudit::KeyAt(const PagedKv& kv, int64_t list, int64_t position) {
  return ListOf(kv, list).keys.data() + position * kv.shape.head_dim;
}

double* MassAudit::GatesAt(const PagedKv& kv, int64_t list, int64_t position) {
  return ListOf(kv, list).c.data() + position * kv.shape.group();
}

void MassAudit::Check(const PagedKv& kv, int64_t list, int head_in_group, int64_t position,
                      const double* query, double sink, int64_t first_seen, double log_eps,
                      int64_t first_held, double log_lost_mass) {
  const List& history = ListOf(kv, list);
  if (!history.complete) return;
  FOX_CHECK(first_seen >= 0 && first_seen <= position && first_held <= first_seen);
  const int d = kv.shape.head_dim, group = kv.shape.group();
  const double* gates = history.c.data() + head_in_group;
  const double root_d = std::sqrt(static_cast<double>(d));
  std::vector<double> terms(static_cast<size_t>(position + 1));
  for (int64_t j = 0; j <= position; ++j) {
    const double product = Dot(query, history.keys.data() + j * d, d);
    terms[static_cast<size_t>(j)] = product / root_d + (gates[position * group] - gates[j * group]);
  }
  const int count = static_cast<int>(terms.size());
  const double log_z = LogAddExp(LogSumExp(terms.data(), count), sink);
  const double excess = LogSumExp(terms.data(), static_cast<int>(first_seen)) - log_z - log_eps;
  const double evicted =
      first_held == 0 ? kNoMass : LogSumExp(terms.data(), static_cast<int>(first_held)) - log_z;
  const double bound_excess = first_held == 0 ? kNoMass : evicted - log_lost_mass;
  // A NaN in the inputs reaches every logit and says nothing about pruning.
  FOX_CHECK(on_breach_ == OnBreach::kRecord || !(excess > 0 || bound_excess > 0));
  const std::lock_guard lock(mutex_);
  max_excess_ = std::max(max_excess_, excess);
  max_bound_excess_ = std::max(max_bound_excess_, bound_excess);
  ++rows_checked_;
}

std::shared_ptr<MassAudit> MakeDebugAudit() {
#ifdef NDEBUG
  return nullptr;
#else
  return std::make_shared<MassAudit>(MassAudit::OnBreach::kStop);
#endif
}

}  // namespace fox
