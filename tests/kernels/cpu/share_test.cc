// Share: a slot that goes on from another's last page end holds, bit for bit, what the other would
// have held, and neither sees the other's later rows. (Owners of pages: kv_cache_test.)
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/paged_kv_storage.h"

namespace fox {
namespace {

constexpr int kLayers = 2, kQHeads = 4, kKvHeads = 2, kHeadDim = 8;
constexpr int64_t kColumns = (kQHeads + 2 * kKvHeads) * kHeadDim + 2 * kKvHeads + kQHeads;
constexpr int64_t kTokens = 320;

PagedKvShape Shape() {
  PagedKvShape shape;
  shape.layers = kLayers;
  shape.q_heads = kQHeads;
  shape.kv_heads = kKvHeads;
  shape.head_dim = kHeadDim;
  shape.num_pages = 100;
  shape.max_slots = 4;
  shape.max_pages = 5;
  shape.k_shift = shape.v_shift = true;
  return shape;
}

class ShareTest : public testing::TestWithParam<AcpMode> {
 protected:
  ShareTest()
      : ops_({DType::kF32, true, 1, nullptr}),
        storage_(Shape(), ops_),
        kv_(storage_.view()),
        diagonal_(kQHeads * kHeadDim, 1.0F) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& x : rows_) x = normal(rng);
    bound_.diagonal = diagonal_.data();
    bound_.self_logit_bound = bound_.max_logit_bound = bound_.max_norm_product = bounds_.data();
  }

  // Rows [from, to) of the text, and the eviction that follows.
  void Append(int32_t slot, int64_t from, int64_t to) {
    const int64_t count = to - from, row_begin[] = {0, count};
    const double log_eps = -3;
    const BatchView batch{1, count, nullptr, &slot, row_begin, &from, &log_eps};
    ops_.BeginStep(batch, kv_, nullptr);
    AppendParams params;
    params.acp = GetParam();
    params.bound = bound_;
    params.k_column = kQHeads * kHeadDim;
    params.v_column = params.k_column + kKvHeads * kHeadDim;
    params.k_shift_column = params.v_column + kKvHeads * kHeadDim;
    params.v_shift_column = params.k_shift_column + kKvHeads;
    params.fgate_column = params.v_shift_column + kKvHeads;
    for (params.layer = 0; params.layer < kLayers; ++params.layer) {
      const float* text = rows_.data() + (params.layer * kTokens + from) * kColumns;
      std::vector<float> rows(text, text + count * kColumns);
      params.projection = {rows.data(), DType::kF32, count, kColumns, kColumns};
      ops_.Append(batch, params, kv_, nullptr);
    }
    EvictParams evict;
    evict.acp = GetParam();
    evict.self_logit_bound = evict.max_logit_bound = bounds_.data();
    ops_.Evict(batch, evict, kv_, nullptr);
  }

  template <typename T>
  static void Add(const void* values, int64_t at, int64_t count, std::string* out) {
    const T* first = static_cast<const T*>(values) + at;
    out->append(reinterpret_cast<const char*>(first), static_cast<size_t>(count) * sizeof(T));
  }

  // All that a sequence in the slot would read of its past.
  std::string StateOf(int slot) const {
    std::string state;
    const int64_t heads = kLayers * kQHeads, rows = kLayers * kKvHeads * kHeadDim;
    Add<int64_t>(kv_.length, slot, 1, &state);
    for (const double* values : {kv_.cum_log_f, kv_.log_mass, kv_.decay_sum}) {
      Add<double>(values, slot * heads, heads, &state);
    }
    Add<double>(kv_.key_sum, slot * heads * kHeadDim, heads * kHeadDim, &state);
    for (const void* values : {kv_.last_k, kv_.last_v, kv_.page_end_k, kv_.page_end_v}) {
      Add<float>(values, slot * rows, rows, &state);
    }
    const int64_t lists = kLayers * kKvHeads, group = kQHeads / kKvHeads;
    Add<int32_t>(kv_.first_live, slot * lists, lists, &state);
    Add<double>(kv_.max_log_evicted_mass, slot * lists, lists, &state);
    for (int64_t list = slot * lists; list < (slot + 1) * lists; ++list) {
      for (int p = kv_.first_live[list]; p < PagesFor(kv_.length[slot]); ++p) {
        const int64_t page = kv_.Table(list)[p], tokens = kPageTokens * kHeadDim;
        const bool full = int64_t{p + 1} * kPageTokens <= kv_.length[slot];
        Add<double>(kv_.page_cum_log_f, page * group, group, &state);
        if (!full) continue;  // behind its last token is what was there before
        Add<float>(kv_.keys, page * tokens, tokens, &state);
        Add<float>(kv_.values, page * tokens, tokens, &state);
        Add<float>(kv_.log_f_offset, page * group * kPageTokens, group * kPageTokens, &state);
        for (const double* values :
             {kv_.log_mass_bound, kv_.log_denominator_bound, kv_.max_key_norm}) {
          Add<double>(values, page * group, group, &state);
        }
      }
    }
    return state;
  }

  CpuOps ops_;
  PagedKvStorage storage_;
  const PagedKv& kv_;
  std::vector<float> rows_ = std::vector<float>(kLayers * kTokens * kColumns);
  std::vector<float> diagonal_;
  std::vector<double> bounds_ = std::vector<double>(kLayers * kQHeads, 4.0);
  QueryBound bound_;
};

TEST_P(ShareTest, GoingOnIsTheSameFromTheSharedPageEnd) {
  for (const int64_t length : {64, 65, 100, 127, 128, 129, 191, 192, 250}) {
    SCOPED_TRACE(length);
    const int64_t page_end = length / kPageTokens * kPageTokens;
    Append(0, 0, length);
    ops_.Share(0, 1, kv_, nullptr);
    EXPECT_EQ(kv_.length[1], page_end);
    // The same as if the first had stopped there.
    Append(2, 0, page_end);
    EXPECT_EQ(StateOf(1), StateOf(2));
    // And it stays so, whatever the first one does meanwhile.
    Append(0, length, kTokens);
    Append(1, page_end, page_end + 20);
    ops_.Share(1, 3, kv_, nullptr);  // within a page: the same page end again
    EXPECT_EQ(StateOf(3), StateOf(2));
    Append(1, page_end + 20, kTokens);
    EXPECT_EQ(StateOf(1), StateOf(0));
    const int32_t slots[] = {0, 1, 2, 3};
    ops_.Release(slots, 4, kv_, nullptr);
    EXPECT_EQ(*kv_.free_count, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ShareTest,
                         testing::Values(AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified));

}  // namespace
}  // namespace fox
