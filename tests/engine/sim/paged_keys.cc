// The real pool's operations, and the audit. Read paged_keys.h first.
#include "tests/engine/sim/paged_keys.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/page_pool.h"
#include "tests/engine/sim/page_audit.h"

namespace fox::sim {
namespace {

constexpr uint64_t kPoison = 0xdeadbeefdeadbeefULL;

CpuOptions OneThread() {
  CpuOptions options;
  options.dtype = DType::kF64;
  options.plain_gemm = true;
  options.threads = 1;
  options.audit = nullptr;
  return options;
}

// One key of 8 bytes a token.
PagedKvShape ShapeOf(const ExecutorLimits& limits) {
  PagedKvShape shape;
  shape.layers = limits.lists_per_slot % 2 == 0 ? 2 : 1;
  shape.kv_heads = static_cast<int>(limits.lists_per_slot / shape.layers);
  shape.q_heads = shape.kv_heads;
  shape.head_dim = 1;
  shape.dtype = DType::kF64;
  shape.num_pages = static_cast<int>(limits.num_pages);
  shape.max_slots = limits.slots() + limits.snapshot_slots;
  shape.max_pages = PagesFor(limits.max_model_len) + 1;
  return shape;
}

// The CPU backend with memory that is cheap to make.
class CheapOps : public CpuOps {
 public:
  CheapOps() : CpuOps(OneThread()) {}

  Buffer Allocate(size_t bytes) override {
    if (bytes == 0) return {};
    void* data = std::calloc(bytes, 1);
    if (data == nullptr) throw std::bad_alloc();
    return {data, bytes, [](void* at, size_t) { std::free(at); }};
  }
};

}  // namespace

void SetStaging(int32_t buffers, int64_t pages, ExecutorLimits* limits) {
  const PagedKvShape shape = ShapeOf(*limits);
  limits->image_state_bytes = static_cast<int64_t>(SlotImageBytes(shape, 0) + sizeof(KeyChain));
  limits->image_page_bytes =
      static_cast<int64_t>(SlotImageBytes(shape, 1) - SlotImageBytes(shape, 0));
  limits->staging_buffers = buffers;
  limits->staging_bytes = limits->ImageBytes(pages);
}

PagedKeys::PagedKeys(const FakeOptions& options)
    : options_(options),
      lists_(options.limits.lists_per_slot),
      slots_(options.limits.slots() + options.limits.snapshot_slots),
      ops_(std::make_unique<CheapOps>()),
      cache_(ShapeOf(options.limits), *ops_),
      kv_(cache_.view()),
      infinity_(static_cast<size_t>(lists_), std::numeric_limits<double>::infinity()),
      length_(static_cast<size_t>(slots_), 0),
      first_(static_cast<size_t>(slots_ * lists_), 0),
      stats_(static_cast<size_t>(slots_)),
      places_(static_cast<size_t>(options.limits.num_pages)),
      owners_(places_.size()),
      sole_(static_cast<size_t>(slots_)) {
  std::fill_n(Page(0), options.limits.num_pages * kPageTokens, kPoison);
}

void PagedKeys::Violate(const char* what, int64_t detail) {
  if (violation_.empty()) violation_ = std::string(what) + " (" + std::to_string(detail) + ")";
}

// A read of a freed page returns something else.
void PagedKeys::PoisonFreed(int32_t free_before) {
  for (int32_t i = free_before; i < *kv_.free_count; ++i) {
    std::fill_n(Page(kv_.free_stack[i]), kPageTokens, kPoison);
  }
}

void PagedKeys::Release(const std::vector<int32_t>& slots) {
  if (slots.empty()) return;
  const int32_t before = *kv_.free_count;
  ops_->Release(slots.data(), static_cast<int>(slots.size()), kv_, nullptr);
  counts_.released += *kv_.free_count - before;
  PoisonFreed(before);
  for (const int32_t slot : slots) {
    length_[static_cast<size_t>(slot)] = 0;
    std::fill_n(first_.begin() + slot * lists_, lists_, 0);
  }
}

void PagedKeys::Share(const SharedSlot& shared) {
  ops_->Share(shared.from, shared.to, kv_, nullptr);
  length_[static_cast<size_t>(shared.to)] = shared.tokens;
  const auto first = first_.begin() + shared.from * lists_;
  std::copy_n(first, lists_, first_.begin() + shared.to * lists_);
  counts_.shared +=
      std::accumulate(first, first + lists_, lists_ * PagesFor(shared.tokens), std::minus<>());
}

void PagedKeys::Save(const SlotTransfer& save, std::byte* image) {
  const auto slot = static_cast<size_t>(save.slot);
  if (stats_[slot].live_pages() != save.pages) return Violate("pages of an image", save.slot);
  if (length_[slot] != save.tokens) return Violate("tokens of an image", save.slot);
  if (stats_[slot].max_log_evicted_mass != save.max_log_evicted_mass) {
    return Violate("the certificate of an image", save.slot);
  }
  ops_->SaveSlot(save.slot, {image, save.pages}, kv_, nullptr);
}

void PagedKeys::Load(const SlotTransfer& load, std::byte* image) {
  if (PagesInImage(kv_.shape, image, load.tokens) != load.pages) {
    return Violate("what is loaded is no image", load.slot);
  }
  if (kv_.length[load.slot] != 0) return Violate("a slot is not empty", load.slot);
  ops_->LoadSlot({image, load.pages}, load.slot, kv_, nullptr);
  counts_.taken += load.pages;
  length_[static_cast<size_t>(load.slot)] = load.tokens;
  std::copy_n(kv_.first_live + load.slot * lists_, lists_, first_.begin() + load.slot * lists_);
}

BatchView PagedKeys::View() const {
  return {static_cast<int>(batch_.size()),
          row_begin_.back(),
          nullptr,
          batch_slots_.data(),
          row_begin_.data(),
          positions_.data(),
          log_tolerances_.data()};
}

void PagedKeys::Begin(const std::vector<Appended>& batch) {
  batch_ = batch;
  batch_slots_.clear();
  positions_.clear();
  log_tolerances_.clear();
  row_begin_.assign(1, 0);
  for (const Appended& rows : batch) {
    const auto slot = static_cast<size_t>(rows.slot);
    if (kv_.length[rows.slot] != rows.position) return Violate("a slot is not empty", rows.slot);
    batch_slots_.push_back(rows.slot);
    positions_.push_back(rows.position);
    log_tolerances_.push_back(rows.log_tolerance);
    row_begin_.push_back(row_begin_.back() + rows.count);
    const int64_t pages = lists_ * (PagesFor(rows.position + rows.count) - PagesFor(rows.position));
    AcpStats& stats = stats_[slot];
    stats.log_tolerance = rows.log_tolerance;
    stats.pages_allocated += pages;
    stats.peak_pages = std::max(stats.peak_pages, stats.live_pages());
    counts_.taken += pages;
    length_[slot] += rows.count;
  }
  ops_->BeginStep(View(), kv_, nullptr);
}

void PagedKeys::Write(int32_t slot, int64_t position, const std::vector<uint64_t>& token_hashes) {
  const int64_t list = kv_.ListIndex(slot, 0, 0);
  const auto count = static_cast<int64_t>(token_hashes.size());
  for (int64_t head = 0; head < lists_; ++head) {
    const int32_t* table = kv_.Table(list + head);
    for (int64_t i = 0; i < count;) {
      const int64_t page_index = (position + i) / kPageTokens, at = (position + i) % kPageTokens;
      const int32_t page = table[page_index];
      if (page < 0 || page >= kv_.shape.num_pages) return Violate("no such page", page);
      uint64_t* words = Page(page);
      if (at == 0) {
        uint64_t written = 0;
        for (int k = 0; k < kPageTokens; ++k) written |= words[k] ^ kPoison;
        if (written != 0) return Violate("a free page was written", page);
        // The mass up to this page: its number. See LogDenominatorBound.
        kv_.log_mass_bound[page] = static_cast<double>(page_index);
      }
      const int64_t end = std::min<int64_t>(count, i + kPageTokens - at);
      int64_t to = at;
      for (; i < end; ++i, ++to) words[to] = KeyOf(token_hashes[static_cast<size_t>(i)], head);
    }
  }
}

void PagedKeys::EndPage(int32_t slot, uint64_t state, int64_t end, double log_tolerance) {
  const int64_t list = kv_.ListIndex(slot, 0, 0), last = end / kPageTokens - 1;
  for (int64_t head = 0; head < lists_; ++head) {
    const int64_t kept = FirstKept(options_, state, head, end, log_tolerance);
    const int32_t page = kv_.Table(list + head)[last];
    kv_.log_denominator_bound[page] = LogDenominatorBound(state, head, end, kept, log_tolerance);
    int32_t& first = first_[static_cast<size_t>(list + head)];
    first = std::max(first, static_cast<int32_t>(kept));
  }
}

uint64_t PagedKeys::Fold(int32_t slot, int64_t position) const {
  const int64_t list = kv_.ListIndex(slot, 0, 0);
  uint64_t fold = 0;
  for (int64_t head = 0; head < lists_; ++head) {
    const int32_t* table = kv_.Table(list + head);
    for (int64_t p = first_[static_cast<size_t>(list + head)]; p * kPageTokens <= position; ++p) {
      const int64_t count = std::min<int64_t>(kPageTokens, position + 1 - p * kPageTokens);
      const uint64_t* words = Page(table[p]);
      uint64_t sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += words[i];
      fold += PageWeight(head, p) * sum;
    }
  }
  return fold;
}

void PagedKeys::Evict() {
  const int32_t before = *kv_.free_count;
  evicted_.assign(batch_.size(), 0);
  evicted_mass_.assign(batch_.size(), kNoMass);
  const EvictParams params{AcpMode::kCertified, infinity_.data(), infinity_.data(), evicted_.data(),
                           evicted_mass_.data()};
  ops_->Evict(View(), params, kv_, nullptr);
  for (size_t i = 0; i < batch_.size(); ++i) {
    AcpStats& stats = stats_[static_cast<size_t>(batch_[i].slot)];
    stats.pages_evicted += evicted_[i];
    counts_.evicted += evicted_[i];
    stats.max_log_evicted_mass = std::max(stats.max_log_evicted_mass, evicted_mass_[i]);
    if (!(evicted_mass_[i] <= batch_[i].log_tolerance)) Violate("evicted too much", batch_[i].slot);
  }
  PoisonFreed(before);
}

void PagedKeys::Own(int32_t page, int32_t slot, int64_t place, bool full) {
  if (page < 0 || page >= kv_.shape.num_pages) return Violate("a page does not exist", page);
  uint64_t& owners = owners_[static_cast<size_t>(page)];
  int64_t& known = places_[static_cast<size_t>(page)];
  if (owners != 0 && (known != place || !full)) return Violate("a page has two owners", page);
  owners += OwnerWord(slot);
  known = place;
}

void PagedKeys::Audit() {
  ++audits_;
  std::fill(owners_.begin(), owners_.end(), uint64_t{0});
  constexpr int64_t kFree = -1;
  const int32_t free = *kv_.free_count;
  if (free < 0 || free > kv_.shape.num_pages) return Violate("free count", free);
  for (int32_t i = 0; i < free && violation_.empty(); ++i) {
    Own(kv_.free_stack[i], 0, kFree, false);
    if (violation_.empty() && *Page(kv_.free_stack[i]) != kPoison) {
      Violate("a free page holds a key", kv_.free_stack[i]);
    }
  }
  for (int32_t slot = 0; slot < slots_ && violation_.empty(); ++slot) AuditSlot(slot);
  if (violation_.empty()) AuditOwners();
  if (audits_ % 64 == 0 && AuditPages(kv_, *ops_).ok() != violation_.empty()) {
    Violate("AuditPages", 0);
  }
}

void PagedKeys::AuditOwners() {
  std::fill(sole_.begin(), sole_.end(), 0);
  for (size_t page = 0; page < owners_.size(); ++page) {
    if (owners_[page] == 0) Violate("a page is lost", static_cast<int64_t>(page));
    const uint64_t owners = places_[page] < 0 ? 0 : owners_[page];
    if (kv_.page_owners[page] != owners) {
      Violate("owners of a page are miscounted", static_cast<int64_t>(page));
    }
    if (NumOwners(owners) == 1) ++sole_[static_cast<size_t>(SoleOwner(owners))];
  }
  for (int32_t slot = 0; slot < slots_; ++slot) {
    if (kv_.sole_pages[slot] != sole_[static_cast<size_t>(slot)]) {
      Violate("sole pages of a slot", slot);
    }
  }
}

void PagedKeys::AuditSlot(int32_t slot) {
  const int64_t length = length_[static_cast<size_t>(slot)];
  if (kv_.length[slot] != length) return Violate("length of a slot", slot);
  const int64_t list = kv_.ListIndex(slot, 0, 0);
  const int end = PagesFor(length);
  int64_t live = 0;
  double mass = kNoMass;
  for (int64_t head = 0; head < lists_; ++head) {
    const int32_t first = kv_.first_live[list + head];
    if (first != first_[static_cast<size_t>(list + head)]) {
      return Violate("a head keeps other pages than it should", list + head);
    }
    live += end - first;
    mass = std::max(mass, kv_.max_log_evicted_mass[list + head]);
    for (int p = first; p < end; ++p) {
      const int64_t place = head * kv_.shape.max_pages + p;
      Own(kv_.Table(list + head)[p], slot, place, length >= int64_t{p + 1} * kPageTokens);
    }
  }
  const AcpStats& stats = stats_[static_cast<size_t>(slot)];
  if (live != stats.live_pages()) Violate("count of live pages", slot);
  if (mass != stats.max_log_evicted_mass) Violate("certificate of a slot", slot);
}

}  // namespace fox::sim
