// MassAudit: the promise of ACP, recomputed from the definition. It keeps every key and cumulative
// gate that Append stored, including evicted ones, and after Attention computes in float64 the
// share of attention mass that each row lost to evicted or skipped pages. It costs the memory and
// the time of attention without pruning. Debug builds run with an audit that stops the process on a
// broken promise; a release build can set one in CpuOptions, for tests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/interface/batch_view.h"
#include "kernels/paging/acp.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

// CpuOps calls BeginStep, then KeyAt and GatesAt for the step's rows, then CheckRow. Different
// lists may be written, and any rows checked, by several threads at once.
class MassAudit {
 public:
  enum class OnBreach : uint8_t { kRecord, kStop };
  explicit MassAudit(OnBreach on_breach) : on_breach_(on_breach) {}

  // The largest log(lost mass) - log eps of any row; above 0 the promise is broken. kNoMass where
  // no row lost anything.
  double max_excess() const;
  // The largest log(mass lost to evicted pages) less the row's own bound; above 0 the bound is
  // wrong.
  double max_bound_excess() const;
  // (row, query head) pairs that lost something.
  int64_t rows_checked() const;

  // Makes room for the batch's rows. A sequence that did not begin with this audit is not checked.
  void BeginStep(const BatchView& batch, const PagedKv& kv);
  // `to` has the first `tokens` tokens of `from`.
  void Share(int32_t from, int32_t to, int64_t tokens, const PagedKv& kv);
  // The slot's sequence is not checked from now on: it came from an image, without its history.
  void Forget(int32_t slot, const PagedKv& kv);
  // [head_dim] and [group] of one token.
  double* KeyAt(const PagedKv& kv, int64_t list, int64_t position);
  double* GatesAt(const PagedKv& kv, int64_t list, int64_t position);
  // A row that saw the keys from `first_seen` on and the sink, kNoMass where there is none; q
  // [head_dim]. The mass of the keys before `first_held`, which are evicted, is claimed to be
  // exp(log_lost_mass) at most.
  template <typename T>
  void CheckRow(const PagedKv& kv, int64_t list, int head_in_group, int64_t position, const T* q,
                double sink, int64_t first_seen, double log_eps, int64_t first_held,
                double log_lost_mass) {
    if (first_seen == 0) return;
    const std::vector<double> query(q, q + kv.shape.head_dim);
    Check(kv, list, head_in_group, position, query.data(), sink, first_seen, log_eps, first_held,
          log_lost_mass);
  }

 private:
  struct List {
    bool complete = false;     // from position 0 on
    std::vector<double> keys;  // [length, head_dim]
    std::vector<double> c;     // [length, group]
  };

  List& ListOf(const PagedKv& kv, int64_t list);
  // The first of the slot's lists; the others follow it.
  std::vector<List>::iterator ListsOf(const PagedKv& kv, int32_t slot);
  void Check(const PagedKv& kv, int64_t list, int head_in_group, int64_t position,
             const double* query, double sink, int64_t first_seen, double log_eps,
             int64_t first_held, double log_lost_mass);

  const OnBreach on_breach_;
  std::map<const int64_t*, std::vector<List>> caches_;  // by PagedKv::length, then by list
  mutable std::mutex mutex_;
  double max_excess_ = kNoMass, max_bound_excess_ = kNoMass;
  int64_t rows_checked_ = 0;
};

// An audit that stops the process, in debug builds and with FOX_AUDIT; null in other builds.
std::shared_ptr<MassAudit> MakeDebugAudit();

}  // namespace fox
