// Share: copies a slot as it was at its last page end. A sequence's past is in its full pages and
// in its running state. The state is accumulated at page ends, and a copy of c and of the raw last
// rows is kept as of the last page end. So a sequence that continues from a shared slot gets the
// same bits as the first one.
#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/page_pool.h"

namespace fox {
namespace {

// `count` elements of every slot.
template <typename T>
void CopySlot(T* values, int64_t count, int from, int to) {
  std::copy_n(values + from * count, count, values + to * count);
}

}  // namespace

void CpuOps::Share(int32_t from, int32_t to, const PagedKv& kv, Stream) {
  const PagedKvShape& shape = kv.shape;
  FOX_CHECK(from != to && kv.length[to] == 0);
  const auto pages = static_cast<int>(kv.length[from] / kPageTokens);
  for (int64_t i = 0; i < shape.lists_per_slot(); ++i) {
    const int64_t source = kv.ListIndex(from, 0, 0) + i, list = kv.ListIndex(to, 0, 0) + i;
    const int first = kv.first_live[source];
    FOX_CHECK(pages == 0 || first < pages);
    for (int p = first; p < pages; ++p) {
      SharePage(kv, to, kv.Table(source)[p]);
      kv.Table(list)[p] = kv.Table(source)[p];
    }
    kv.first_live[list] = first;
    kv.max_log_evicted_mass[list] = kv.max_log_evicted_mass[source];
  }
  const int64_t heads = shape.heads_per_slot();
  const int64_t length = kv.length[from], end = int64_t{pages} * kPageTokens;
  for (int64_t h = 0; h < heads; ++h) {
    double c = kv.cum_log_f[kv.HeadIndex(kv.After(from, length), 0, 0) + h];
    if (length != end) {
      // c has advanced since; its value at the page end is the base of the page that is not full.
      const int64_t list = kv.ListIndex(from, 0, 0) + h / shape.group();
      c = kv.page_cum_log_f[kv.SummaryIndex(kv.Table(list)[pages],
                                            static_cast<int>(h % shape.group()))];
    }
    kv.cum_log_f[kv.HeadIndex(kv.After(to, end), 0, 0) + h] = c;
  }
  CopySlot(kv.evicted_log_mass, heads, from, to);
  CopySlot(kv.log_mass, heads, from, to);
  CopySlot(kv.decay_sum, heads, from, to);
  CopySlot(kv.key_sum, heads * shape.head_dim, from, to);
  const auto row_bytes =
      static_cast<int64_t>(SizeOf(shape.residual_dtype())) * shape.layers * shape.kv_size();
  const auto copy_rows = [&](void* rows, void* at, int64_t slot) {
    if (rows == nullptr) return;
    std::memcpy(static_cast<std::byte*>(at) + slot * row_bytes,
                static_cast<const std::byte*>(rows) + from * row_bytes,
                static_cast<size_t>(row_bytes));
  };
  copy_rows(kv.page_end_k, kv.last_k, kv.After(to, end));
  copy_rows(kv.page_end_v, kv.last_v, kv.After(to, end));
  copy_rows(kv.page_end_k, kv.page_end_k, to);
  copy_rows(kv.page_end_v, kv.page_end_v, to);
  kv.length[to] = end;
  if (audit_ != nullptr) audit_->Share(from, to, end, kv);
}

}  // namespace fox
