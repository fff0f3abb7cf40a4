// The random operations and the model; pool_simulation_checks.cc compares. See pool_simulation.h.
#include "tests/engine/run/pool_simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace fox::pool {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSlack = 1.0 / 256;  // what acp.h promises to keep free below log eps

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in [0, 1), exact in float32.
float Uniform(uint64_t hash) { return static_cast<float>(hash >> 40) * 0x1p-24f; }

}  // namespace

PoolSimulation::PoolSimulation(const PoolConfig& config, Ops& ops)
    : config_(config),
      shape_(config.shape),
      ops_(ops),
      cache_(config.shape, ops),
      rng_(config.seed),
      slots_(static_cast<size_t>(config.shape.max_slots)),
      diagonal_(static_cast<size_t>(config.shape.q_heads * config.shape.head_dim), 1.5F),
      self_logit_bound_(static_cast<size_t>(config.shape.layers * config.shape.q_heads),
                        config.self_logit_bound),
      max_logit_bound_(static_cast<size_t>(config.shape.layers * config.shape.q_heads),
                       config.max_logit_bound),
      max_norm_product_(max_logit_bound_.size(), 10),
      owners_(static_cast<size_t>(config.shape.num_pages)) {
  bound_.diagonal = diagonal_.data();
  bound_.self_logit_bound = self_logit_bound_.data();
  bound_.max_logit_bound = max_logit_bound_.data();
  bound_.max_norm_product = max_norm_product_.data();
  for (Sequence& sequence : slots_) Reset(sequence);
}

BatchView PoolSimulation::Batch::view() const {
  return {static_cast<int>(slots.size()),
          row_begin.back(),
          nullptr,
          slots.data(),
          row_begin.data(),
          position.data(),
          log_eps.data()};
}

// What the slot holds next.
void PoolSimulation::Reset(Sequence& sequence) {
  sequence.length = 0;
  constexpr double kTolerances[] = {-10, -10, -3, -0.5, -kInfinity};
  sequence.generation = next_generation_++;
  sequence.shared.clear();
  sequence.copied = {0, 0};
  // The slots are an array.
  sequence.family = static_cast<float>(1 + (&sequence - slots_.data()) +
                                       16 * static_cast<int>(sequence.generation % 64));
  sequence.log_eps = kTolerances[Random(5)];
  sequence.largest_side = -kInfinity;
  Layer empty;
  Head head;
  head.log_mass = -kInfinity;
  head.key_sum.assign(static_cast<size_t>(shape_.head_dim), 0.0);
  empty.heads.assign(static_cast<size_t>(shape_.q_heads), head);
  empty.first.assign(static_cast<size_t>(shape_.kv_heads), 0);
  sequence.layers.assign(static_cast<size_t>(shape_.layers), empty);
}

std::string PoolSimulation::Step() {
  ++counts_.steps;
  std::string error;
  if (Random(12) == 0) error = ReleaseSome();
  if (error.empty() && Random(6) == 0) error = ShareSome();
  if (error.empty() && Random(6) == 0) error = SwapSome();
  if (!error.empty()) return error;
  std::vector<int64_t> rows = ChooseRows();
  if (!MakeRoom(rows, error)) return error;
  const Batch batch = MakeBatch(rows);
  if (batch.slots.empty()) return error;
  error = Begin(batch);
  for (int layer = 0; layer < shape_.layers && error.empty(); ++layer) {
    error = RunLayer(batch, layer);
  }
  if (error.empty() && Random(16) != 0) error = Evict(batch);
  if (error.empty() && counts_.steps % 512 == 0) error = CheckAllTags();
  return error;
}

std::string PoolSimulation::ReleaseSome() {
  std::vector<int32_t> slots;
  for (int slot = 0; slot < shape_.max_slots; ++slot) {
    if (Random(3) == 0) slots.push_back(slot);
  }
  return Release(slots);
}

std::string PoolSimulation::Release(const std::vector<int32_t>& slots) {
  cache_.Release(slots);
  counts_.releases += static_cast<int64_t>(slots.size());
  for (int32_t slot : slots) Reset(slots_[static_cast<size_t>(slot)]);
  return Check();
}

// One slot gives way to the last page end of another.
std::string PoolSimulation::ShareSome() {
  const auto from = static_cast<size_t>(Random(slots_.size()));
  const auto to = static_cast<size_t>(Random(slots_.size()));
  if (from == to || slots_[from].length == 0) return "";
  std::string error = Release({static_cast<int32_t>(to)});
  if (!error.empty()) return error;
  cache_.Share(static_cast<int32_t>(from), static_cast<int32_t>(to));
  ++counts_.shares;
  const uint64_t generation = slots_[to].generation;
  Sequence& shared = slots_[to] = slots_[from];
  shared.length = slots_[from].length / kPageTokens * kPageTokens;
  while (!shared.shared.empty() && shared.shared.back().end >= shared.length) {
    shared.generation = shared.shared.back().generation;
    shared.shared.pop_back();
  }
  shared.shared.push_back({shared.length, shared.generation});
  shared.copied.end = std::min(shared.copied.end, shared.length);
  shared.generation = generation;
  for (Layer& layer : shared.layers) {
    for (Head& h : layer.heads) {
      h.c = h.c_end.empty() ? 0 : h.c_end.back();
      h.log_mass = h.c_end.empty() ? -kInfinity : h.end_log_mass;
      h.decay_sum = h.c_end.empty() ? 0 : h.end_decay_sum;
      if (h.c_end.empty()) {
        std::fill(h.key_sum.begin(), h.key_sum.end(), 0.0);
      } else {
        h.key_sum = h.end_key_sum;
      }
    }
  }
  return Check();
}

// One slot goes to host memory, or gives way to one that is there.
std::string PoolSimulation::SwapSome() {
  constexpr size_t kMostSwapped = 3;
  const auto slot = static_cast<size_t>(Random(slots_.size()));
  const bool out = swapped_.size() < kMostSwapped && Random(2) == 0;
  if (out) return slots_[slot].length == 0 ? "" : SwapOut(slot);
  return swapped_.empty() ? "" : SwapIn(slot);
}

std::string PoolSimulation::SwapOut(size_t slot) {
  int64_t pages = 0;
  for (const Layer& layer : slots_[slot].layers) {
    for (int32_t first : layer.first) pages += PagesFor(slots_[slot].length) - first;
  }
  swapped_.push_back({slots_[slot], std::vector<std::byte>(SwapBytes(shape_, pages)), pages});
  cache_.SwapOut(static_cast<int32_t>(slot), {swapped_.back().range.data(), pages});
  const std::string error = Check();
  return error.empty() ? Release({static_cast<int32_t>(slot)}) : error;
}

std::string PoolSimulation::SwapIn(size_t slot) {
  std::swap(swapped_[static_cast<size_t>(Random(swapped_.size()))], swapped_.back());
  Swapped& swapped = swapped_.back();
  std::string error = Release({static_cast<int32_t>(slot)});
  if (!error.empty() || swapped.pages > cache_.FreePages()) return error;
  cache_.SwapIn({swapped.range.data(), swapped.pages}, static_cast<int32_t>(slot));
  ++counts_.swaps;
  const uint64_t copy = slots_[slot].generation;  // no other's
  slots_[slot] = std::move(swapped.sequence);
  slots_[slot].copied = {int64_t{PagesFor(slots_[slot].length)} * kPageTokens, copy};
  swapped_.pop_back();
  return Check();
}

// Rows that each slot brings, 0 for those that pause; mostly decodes, some prefill chunks.
std::vector<int64_t> PoolSimulation::ChooseRows() {
  std::vector<int64_t> rows;
  for (const Sequence& sequence : slots_) {
    const uint64_t kind = Random(20);
    uint64_t count = kind < 8 ? 0 : kind < 13 ? 1 : kind < 16 ? 1 + Random(8) : 1 + Random(130);
    const int64_t room = static_cast<int64_t>(shape_.max_pages) * kPageTokens - sequence.length;
    rows.push_back(std::min(static_cast<int64_t>(count), room));
  }
  return rows;
}

// What the scheduler promises: the pool covers the step's new pages. Preempts until it does, and
// ends sequences that are as long as they can be.
bool PoolSimulation::MakeRoom(std::vector<int64_t>& rows, std::string& error) {
  for (size_t slot = 0; slot < slots_.size() && error.empty(); ++slot) {
    if (PagesFor(slots_[slot].length) == shape_.max_pages && rows[slot] == 0) {
      error = Release({static_cast<int32_t>(slot)});
    }
  }
  while (error.empty()) {
    int64_t need = 0;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const int64_t length = slots_[slot].length;
      need += (PagesFor(length + rows[slot]) - PagesFor(length)) * shape_.lists_per_slot();
    }
    if (need <= cache_.FreePages()) return true;
    const auto victim = static_cast<size_t>(Random(slots_.size()));
    rows[victim] = 0;
    error = Release({static_cast<int32_t>(victim)});
  }
  return false;
}

// The slots in random order.
PoolSimulation::Batch PoolSimulation::MakeBatch(const std::vector<int64_t>& rows) {
  std::vector<int32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng_);
  Batch batch;
  batch.row_begin = {0};
  for (int32_t slot : order) {
    const auto at = static_cast<size_t>(slot);
    if (rows[at] == 0) continue;
    batch.slots.push_back(slot);
    batch.row_begin.push_back(batch.row_begin.back() + rows[at]);
    batch.position.push_back(slots_[at].length);
    batch.log_eps.push_back(slots_[at].log_eps);
  }
  return batch;
}

std::string PoolSimulation::Begin(const Batch& batch) {
  ops_.BeginStep(batch.view(), cache_.view(), nullptr);
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    slots_[static_cast<size_t>(batch.slots[i])].length +=
        batch.row_begin[i + 1] - batch.row_begin[i];
  }
  return Check();
}

std::string PoolSimulation::RunLayer(const Batch& batch, int layer) {
  FillProjection(batch, layer);
  const int64_t q_size = static_cast<int64_t>(shape_.q_heads) * shape_.head_dim;
  const int64_t columns = q_size + 2 * shape_.kv_size() + shape_.q_heads;
  AppendParams append;
  append.layer = layer;
  append.projection = {projection_.data(), DType::kF32, batch.row_begin.back(), columns, columns};
  append.k_column = q_size;
  append.v_column = q_size + shape_.kv_size();
  append.fgate_column = columns - shape_.q_heads;
  append.bound = bound_;
  append.acp = config_.acp;
  ops_.Append(batch.view(), append, cache_.view(), nullptr);
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    AdvanceModel(batch.slots[i], layer, batch.row_begin[i + 1] - batch.row_begin[i]);
  }
  counts_.appends += static_cast<int64_t>(batch.slots.size());
  std::string error = CheckSomeTags(batch, layer);
  if (error.empty() && Random(16) == 0) error = Attend(batch, layer);
  return error;
}

std::string PoolSimulation::Evict(const Batch& batch) {
  ops_.Evict(batch.view(),
             {config_.acp, self_logit_bound_.data(), max_logit_bound_.data(), nullptr},
             cache_.view(), nullptr);
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    const int64_t count = batch.row_begin[i + 1] - batch.row_begin[i];
    for (int layer = 0; layer < shape_.layers; ++layer) {
      PredictEviction(batch.slots[i], layer, batch.position[i], batch.position[i] + count);
    }
  }
  counts_.evictions += static_cast<int64_t>(batch.slots.size());
  std::string error = Check();
  for (int layer = 0; layer < shape_.layers && error.empty(); ++layer) {
    error = CheckSomeTags(batch, layer);
  }
  return error;
}

void PoolSimulation::FillProjection(const Batch& batch, int layer) {
  projection_.clear();
  const int d = shape_.head_dim;
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    const Sequence& sequence = slots_[static_cast<size_t>(batch.slots[i])];
    const uint64_t generation = sequence.generation;
    for (int64_t r = 0; r < batch.row_begin[i + 1] - batch.row_begin[i]; ++r) {
      const int64_t position = batch.position[i] + r;
      for (int m = 0; m < shape_.q_heads * d; ++m) {
        projection_.push_back(static_cast<float>((m + position) % 7) * 0.25F - 0.75F);
      }
      for (int m = 0; m < shape_.kv_heads * d; ++m) {
        projection_.push_back(KeyElement(generation, layer, m / d, position, m % d));
      }
      for (int m = 0; m < shape_.kv_heads * d; ++m) {
        projection_.push_back(ValueElement(sequence, layer, m / d, position, m % d));
      }
      for (int head = 0; head < shape_.q_heads; ++head) {
        projection_.push_back(GateLogit(generation, layer, head, position));
      }
    }
  }
}

float PoolSimulation::KeyElement(uint64_t generation, int layer, int head, int64_t position,
                                 int m) const {
  const auto place = static_cast<uint64_t>(((position * 8 + layer) * 8 + head) * 16 + m);
  // The mean grows and shrinks again, so that the bounds on denominators do.
  return Uniform(Mix(generation, place)) - (position / 128 % 2 == 0 ? 0.5F : -0.5F);
}

uint64_t PoolSimulation::GenerationAt(const Sequence& sequence, int64_t position) {
  for (const Origin& origin : sequence.shared) {
    if (position < origin.end) return origin.generation;
  }
  return sequence.generation;
}

float PoolSimulation::ValueElement(const Sequence& sequence, int layer, int head, int64_t position,
                                   int m) const {
  if (m == 0) return static_cast<float>((layer * 8 + head + 1) * 4096 + position);
  if (m == 1) return sequence.family;
  return static_cast<float>((GenerationAt(sequence, position) + static_cast<uint64_t>(m)) %
                            (1u << 24));
}

// From heads that forget within a page to heads that never do.
float PoolSimulation::GateLogit(uint64_t generation, int layer, int head, int64_t position) const {
  const uint64_t list = Mix(generation, static_cast<uint64_t>(1000 + layer * 8 + head));
  const float mean = 11 * Uniform(list) - 3;
  if (config_.constant_gates) return mean;
  return mean + 4 * Uniform(Mix(list, static_cast<uint64_t>(position))) - 2;
}

void PoolSimulation::AdvanceModel(int slot, int layer, int64_t count) {
  Sequence& sequence = slots_[static_cast<size_t>(slot)];
  Layer& state = sequence.layers[static_cast<size_t>(layer)];
  for (int64_t position = sequence.length - count; position < sequence.length; ++position) {
    for (int head = 0; head < shape_.q_heads; ++head) {
      AdvanceHead(sequence.generation, layer, head, position,
                  state.heads[static_cast<size_t>(head)]);
    }
  }
}

// log M_b = logaddexp(a_b, log M_{b-1} + log f_b); S = 1 + f S; N = k + f N; and at page ends
// E = min(log M, log(b+1) + U) - c, H = min(H, c + beta).
void PoolSimulation::AdvanceHead(uint64_t generation, int layer, int head, int64_t position,
                                 Head& h) const {
  const bool certified = config_.acp == AcpMode::kCertified;
  const double f =
      1 / (1 + std::exp(-static_cast<double>(GateLogit(generation, layer, head, position))));
  h.c += std::log(f);
  double square = 0, sum_square = 0;
  for (int m = 0; certified && m < shape_.head_dim; ++m) {
    const double k =
        static_cast<double>(KeyElement(generation, layer, head / shape_.group(), position, m));
    double& sum = h.key_sum[static_cast<size_t>(m)];
    sum = k + f * sum;
    square += k * k;
    sum_square += sum * sum;
  }
  const double stretch = 1.5;  // every element of diagonal_
  if (certified) {
    h.decay_sum = 1 + f * h.decay_sum;
    const double a = stretch * std::sqrt(square), before = h.log_mass + std::log(f);
    h.log_mass = std::max(a, before) + std::log1p(std::exp(-std::abs(a - before)));
  }
  if (position % kPageTokens != kPageTokens - 1) return;
  h.c_end.push_back(h.c);
  h.end_log_mass = h.log_mass;
  h.end_decay_sum = h.decay_sum;
  h.end_key_sum = h.key_sum;
  if (!certified) return;
  const double reach = h.c + stretch * std::sqrt(sum_square) / h.decay_sum - std::log(h.decay_sum);
  h.log_denominator_bound.push_back(
      h.log_denominator_bound.empty() ? reach : std::min(h.log_denominator_bound.back(), reach));
  const double by_length = std::log(static_cast<double>(position + 1)) + config_.max_logit_bound;
  h.log_mass_bound.push_back(std::min(h.log_mass, by_length) - h.c);
}

// The rule's evicted-mass bound for page `first` at the end of `page`, the largest over the group.
double PoolSimulation::Side(const Layer& state, int kv_head, int first, int page) const {
  const auto from = static_cast<size_t>(first), to = static_cast<size_t>(page);
  double side = -kInfinity;
  for (int g = 0; g < shape_.group(); ++g) {
    const Head& h = state.heads[static_cast<size_t>(kv_head * shape_.group() + g)];
    const double length = static_cast<double>(first + 1) * kPageTokens;
    const double one =
        config_.acp == AcpMode::kPaper
            ? h.c_end[to] - h.c_end[from] + 2 * config_.max_logit_bound + std::log(length)
            : h.log_mass_bound[from] +
                  std::min(h.log_denominator_bound[to], h.c_end[to] + config_.self_logit_bound);
    side = std::max(side, one);
  }
  return side;
}

void PoolSimulation::PredictEviction(int slot, int layer, int64_t begin, int64_t end) {
  for (int64_t page = begin / kPageTokens; page < end / kPageTokens; ++page) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      PredictList(slot, layer, head, static_cast<int>(page));
    }
  }
}

void PoolSimulation::PredictList(int slot, int layer, int kv_head, int page) {
  Sequence& sequence = slots_[static_cast<size_t>(slot)];
  if (sequence.log_eps == -kInfinity) return;
  Layer& state = sequence.layers[static_cast<size_t>(layer)];
  int32_t& first = state.first[static_cast<size_t>(kv_head)];
  const int32_t actual = cache_.view().first_live[cache_.view().ListIndex(slot, layer, kv_head)];
  while (first < page) {
    const double side = Side(state, kv_head, first, page);
    const double room = sequence.log_eps - kSlack - side;
    const bool tie = std::abs(room) < kTie;
    if (tie) ++counts_.ties;
    if (tie ? actual <= first : room < 0) break;
    // After a tie the page may have gone only at a later page end of the batch.
    sequence.largest_side = std::max(sequence.largest_side, tie ? cache_.MaxLogMass(slot) : side);
    ++first;
    ++counts_.pages_evicted;
  }
}

}  // namespace fox::pool
