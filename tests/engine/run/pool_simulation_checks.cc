// What the cache holds against what the model says. See pool_simulation.h.
#include <algorithm>
#include <cmath>

#include "tests/engine/run/pool_simulation.h"

namespace fox::pool {
namespace {

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (add(parts), ...);
  return text;
}

}  // namespace

// A mean of a list's values keeps what they share: dimension 1 names slot and generation, and
// dimension 0 layer and head.
std::string PoolSimulation::Attend(const Batch& batch, int layer) {
  const int64_t q_size = static_cast<int64_t>(shape_.q_heads) * shape_.head_dim;
  const int64_t columns = q_size + 2 * shape_.kv_size() + shape_.q_heads;
  const int64_t rows = batch.row_begin.back();
  out_.resize(static_cast<size_t>(rows * q_size));
  AttentionParams attention;
  attention.layer = layer;
  attention.q = {projection_.data(), DType::kF32, rows, q_size, columns};
  attention.out = {out_.data(), DType::kF32, rows, q_size, q_size};
  attention.acp = config_.acp;
  attention.bound = bound_;
  ops_.Attention(batch.view(), attention, cache_.view(), nullptr);
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    const int slot = batch.slots[i];
    const Sequence& sequence = slots_[static_cast<size_t>(slot)];
    for (int64_t row = batch.row_begin[i]; row < batch.row_begin[i + 1]; ++row) {
      const int64_t position = batch.position[i] + row - batch.row_begin[i];
      for (int head = 0; head < shape_.q_heads; ++head) {
        const int kv_head = head / shape_.group();
        const float* out =
            out_.data() + row * q_size + static_cast<int64_t>(head) * shape_.head_dim;
        const float low = ValueElement(sequence, layer, kv_head, 0, 0);
        const float high = ValueElement(sequence, layer, kv_head, position, 0);
        const float owner = ValueElement(sequence, layer, kv_head, 0, 1);
        // Sums of up to 1,000 terms in float32.
        if (!(out[0] >= low * 0.9999F - 1 && out[0] <= high * 1.0001F + 1 &&
              std::abs(out[1] - owner) <= 1e-4F * owner)) {
          return Text("attention saw foreign values: slot ", slot, " layer ", layer, " head ", head,
                      " position ", position, ": ", out[0], ", ", out[1]);
        }
      }
    }
  }
  return "";
}

// The one page with what this sequence has there: where a list is, and what wrote it, or which copy
// it is.
uint64_t PoolSimulation::PageName(const Sequence& sequence, int list, int page) const {
  const int64_t position = static_cast<int64_t>(page) * kPageTokens;
  const uint64_t writer = position < sequence.copied.end ? sequence.copied.generation
                                                         : GenerationAt(sequence, position);
  return (writer << 20 | static_cast<uint64_t>(list) << 10) + static_cast<uint64_t>(page);
}

// Everything but the pages' contents.
std::string PoolSimulation::Check() {
  ++counts_.audits;
  const absl::Status audit = cache_.Audit();
  if (!audit.ok()) return Text("audit: ", std::string(audit.message()));
  std::string error = CheckCounts();
  if (error.empty()) error = CheckOwners();
  for (int slot = 0; slot < shape_.max_slots && error.empty(); ++slot) error = CheckLists(slot);
  return error;
}

// Pages of the model, each once however many have it, are those not free; and a slot that has
// one alone is counted so.
std::string PoolSimulation::CheckCounts() {
  names_.clear();
  for (const Sequence& sequence : slots_) {
    int list = 0;
    for (const Layer& layer : sequence.layers) {
      for (int32_t first : layer.first) {
        for (int p = first; p < PagesFor(sequence.length); ++p) {
          names_.push_back(PageName(sequence, list, p));
        }
        ++list;
      }
    }
  }
  std::sort(names_.begin(), names_.end());
  const auto distinct = std::unique(names_.begin(), names_.end()) - names_.begin();
  counts_.shared_pages += static_cast<int64_t>(names_.size()) - distinct;
  if (cache_.FreePages() != shape_.num_pages - distinct) {
    return Text("free pages: ", cache_.FreePages(), ", not ", shape_.num_pages - distinct);
  }
  return "";
}

// The same as Audit by other means: a live page is not free, and its owner has what its writer
// wrote there.
std::string PoolSimulation::CheckOwners() {
  const PagedKv& kv = cache_.view();
  constexpr uint64_t kNobody = ~uint64_t{0}, kFree = kNobody - 1;
  std::fill(owners_.begin(), owners_.end(), kNobody);
  for (int i = 0; i < *kv.free_count; ++i) owners_[static_cast<size_t>(kv.free_stack[i])] = kFree;
  for (int slot = 0; slot < shape_.max_slots; ++slot) {
    const int end = PagesFor(kv.length[slot]);
    for (int list = 0; list < static_cast<int>(shape_.lists_per_slot()); ++list) {
      const int64_t at = kv.ListIndex(slot, 0, 0) + list;
      for (int p = kv.first_live[at]; p < end; ++p) {
        uint64_t& owner = owners_[static_cast<size_t>(kv.Table(at)[p])];
        const uint64_t name = PageName(slots_[static_cast<size_t>(slot)], list, p);
        if (owner != kNobody && owner != name) {
          return Text("page ", kv.Table(at)[p], " in list ", at, ": ", owner);
        }
        owner = name;
      }
    }
  }
  return "";
}

std::string PoolSimulation::CheckLists(int slot) {
  const PagedKv& kv = cache_.view();
  const Sequence& sequence = slots_[static_cast<size_t>(slot)];
  const double mass = cache_.MaxLogMass(slot);
  if (mass > sequence.log_eps ||
      (mass != sequence.largest_side && !(std::abs(mass - sequence.largest_side) < kTie))) {
    return Text("slot ", slot, ": certificate ", mass, ", not ", sequence.largest_side);
  }
  if (kv.length[slot] != sequence.length) {
    return Text("slot ", slot, ": length is not ", sequence.length);
  }
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const Layer& state = sequence.layers[static_cast<size_t>(layer)];
    for (int head = 0; head < shape_.q_heads; ++head) {
      const double c = state.heads[static_cast<size_t>(head)].c;
      if (!(std::abs(kv.cum_log_f[kv.HeadIndex(slot, layer, head)] - c) <= 1e-9 * (1 - c))) {
        return Text("slot ", slot, " layer ", layer, " head ", head, ": c is not ", c);
      }
    }
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const int32_t first = kv.first_live[kv.ListIndex(slot, layer, head)];
      const int32_t expected = state.first[static_cast<size_t>(head)];
      if (first != expected) {
        return Text("slot ", slot, " layer ", layer, " head ", head, ": first live page ", first,
                    ", not ", expected, " of ", PagesFor(sequence.length));
      }
    }
  }
  return "";
}

// The newest position and two random live ones of each sequence, in a random list of the layer.
std::string PoolSimulation::CheckSomeTags(const Batch& batch, int layer) {
  for (int32_t slot : batch.slots) {
    const int head = static_cast<int>(Random(static_cast<uint64_t>(shape_.kv_heads)));
    const Sequence& sequence = slots_[static_cast<size_t>(slot)];
    const Layer& state = sequence.layers[static_cast<size_t>(layer)];
    const int64_t begin =
        static_cast<int64_t>(state.first[static_cast<size_t>(head)]) * kPageTokens;
    std::string error = CheckTag(slot, layer, head, sequence.length - 1);
    for (int i = 0; i < 2 && error.empty(); ++i) {
      const auto live = static_cast<uint64_t>(sequence.length - begin);
      error = CheckTag(slot, layer, head, begin + static_cast<int64_t>(Random(live)));
    }
    if (!error.empty()) return error;
  }
  return "";
}

std::string PoolSimulation::CheckAllTags() {
  for (int slot = 0; slot < shape_.max_slots; ++slot) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const Layer& state = slots_[static_cast<size_t>(slot)].layers[static_cast<size_t>(layer)];
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const int64_t first = state.first[static_cast<size_t>(head)];
        for (int64_t position = first * kPageTokens;
             position < slots_[static_cast<size_t>(slot)].length; ++position) {
          std::string error = CheckTag(slot, layer, head, position);
          if (!error.empty()) return error;
        }
        std::string error = CheckSummaries(slot, layer, head);
        if (!error.empty()) return error;
      }
    }
  }
  return "";
}

// E and H of every live full page.
std::string PoolSimulation::CheckSummaries(int slot, int layer, int head) {
  if (config_.acp != AcpMode::kCertified) return "";
  const PagedKv& kv = cache_.view();
  const Layer& state = slots_[static_cast<size_t>(slot)].layers[static_cast<size_t>(layer)];
  const int32_t* table = kv.Table(kv.ListIndex(slot, layer, head));
  for (int p = state.first[static_cast<size_t>(head)];
       p < slots_[static_cast<size_t>(slot)].length / kPageTokens; ++p) {
    for (int g = 0; g < shape_.group(); ++g) {
      const Head& h = state.heads[static_cast<size_t>(head * shape_.group() + g)];
      const int64_t summary = static_cast<int64_t>(table[p]) * shape_.group() + g;
      if (!(std::abs(kv.log_mass_bound[summary] - h.log_mass_bound[static_cast<size_t>(p)]) <
            kTie) ||
          !(std::abs(kv.log_denominator_bound[summary] -
                     h.log_denominator_bound[static_cast<size_t>(p)]) < kTie)) {
        return Text("slot ", slot, " layer ", layer, " head ", head, " page ", p, ": E ",
                    kv.log_mass_bound[summary], ", H ", kv.log_denominator_bound[summary]);
      }
    }
  }
  return "";
}

std::string PoolSimulation::CheckTag(int slot, int layer, int head, int64_t position) {
  ++counts_.tags_read;
  const PagedKv& kv = cache_.view();
  const Sequence& sequence = slots_[static_cast<size_t>(slot)];
  const uint64_t generation = GenerationAt(sequence, position);
  const int64_t page = kv.Table(kv.ListIndex(slot, layer, head))[position / kPageTokens];
  const int64_t token = position % kPageTokens, d = shape_.head_dim;
  const float* keys = static_cast<const float*>(kv.keys) + page * d * kPageTokens;
  const float* values = static_cast<const float*>(kv.values) + (page * kPageTokens + token) * d;
  for (int m = 0; m < shape_.head_dim; ++m) {
    const float value = ValueElement(sequence, layer, head, position, m);
    const float key = KeyElement(generation, layer, head, position, m);
    if (values[m] != value || keys[m * kPageTokens + token] != key) {
      return Text("tag: slot ", slot, " layer ", layer, " head ", head, " position ", position,
                  " page ", page, " dimension ", m, ": value ", values[m], ", not ", value);
    }
  }
  return "";
}

}  // namespace fox::pool
