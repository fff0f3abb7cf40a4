// Lays a step's arrays out in one block. See batch_builder.h.
#include "engine/batch_builder.h"

#include <cstring>

#include "kernels/core/check.h"

namespace fox {

BatchBuilder::BatchBuilder(Ops& ops, int64_t max_rows, int64_t max_seqs, int64_t max_logit_rows)
    : ops_(ops),
      device_(
          ops.Allocate(static_cast<size_t>(max_rows + max_logit_rows + 8 * (max_seqs + 1)) * 8)) {
  host_.reserve(device_.bytes());
}

template <typename T>
const T* BatchBuilder::Put(const std::vector<T>& values) {
  const size_t at = host_.size();
  const size_t bytes = (values.size() * sizeof(T) + 7) / 8 * 8;
  FOX_CHECK(at + bytes <= device_.bytes());
  host_.resize(at + bytes);
  if (!values.empty()) std::memcpy(host_.data() + at, values.data(), values.size() * sizeof(T));
  return reinterpret_cast<const T*>(device_.as<std::byte>() + at);
}

void BatchBuilder::Build(const StepPlan& plan, Stream stream) {
  std::vector<int32_t> ids, slots;
  std::vector<int64_t> row_begin{0}, positions, logit_rows;
  std::vector<double> tolerances;
  for (const PlannedSequence& seq : plan.sequences) {
    const auto first = static_cast<int64_t>(ids.size());
    ids.insert(ids.end(), seq.token_ids.begin(), seq.token_ids.end());
    row_begin.push_back(static_cast<int64_t>(ids.size()));
    slots.push_back(seq.slot);
    positions.push_back(seq.position);
    tolerances.push_back(seq.log_tolerance);
    for (int32_t row : seq.logit_rows) logit_rows.push_back(first + row);
  }
  host_.clear();
  batch_.num_seqs = static_cast<int>(slots.size());
  batch_.num_rows = static_cast<int64_t>(ids.size());
  batch_.token_ids = Put(ids);
  batch_.slot = Put(slots);
  batch_.row_begin = Put(row_begin);
  batch_.position = Put(positions);
  batch_.log_tolerance = Put(tolerances);
  num_logit_rows_ = static_cast<int64_t>(logit_rows.size());
  logit_rows_ = Put(logit_rows);
  const std::vector<int64_t> zeros(slots.size(), 0);
  blocks_total_ = const_cast<int64_t*>(Put(zeros));
  blocks_skipped_ = const_cast<int64_t*>(Put(zeros));
  pages_evicted_ = const_cast<int64_t*>(Put(zeros));
  ops_.CopyToDevice(host_.data(), host_.size(), device_.data(), stream);
}

}  // namespace fox
