// StepReadback: copies to the host, and the StepResult.
#include "engine/run/step_readback.h"

#include <algorithm>

#include "engine/request/sampler.h"
#include "kernels/core/check.h"

namespace fox {
StepReadback::StepReadback(Ops& ops, const BatchBuilder& batch)
    : ops_(ops),
      batch_(batch),
      queue_(ops.queue()),
      staging_(Allocate(batch.bytes())),
      outputs_(Allocate(batch.output_bytes())) {
  if (queue_ != nullptr) event_ = queue_->MakeEvent();
}

Buffer StepReadback::Allocate(size_t bytes) const {
  if (queue_ != nullptr) return queue_->AllocatePinned(bytes);
  return {new std::byte[bytes](), bytes,
          [](void* data, size_t) { delete[] static_cast<std::byte*>(data); }};
}

void StepReadback::Begin(const StepPlan& plan, bool row_each) {
  moves_.drop_snapshots = plan.drop_snapshots;
  moves_.snapshots = plan.snapshots;
  moves_.release_slots = plan.release_slots;
  moves_.loads = plan.loads;
  moves_.starts = plan.starts;
  wants_windows_ = plan.read_windows;
  sequences_.clear();
  scored_rows_ = 0;
  for (const PlannedSequence& seq : plan.sequences) {
    const auto rows = static_cast<int64_t>(seq.logit_rows.size());
    const auto scores = static_cast<int64_t>(seq.scores.size());
    scored_rows_ += scores;
    sequences_.push_back({seq.slot, rows, scores, row_each && rows == 0, seq.sample.has_value(),
                          seq.sample ? seq.sample->logprobs : -1,
                          seq.position + static_cast<int64_t>(seq.token_ids.size())});
  }
}

void StepReadback::Fetch(const void* device, size_t bytes, void* host) {
  if (queue_ != nullptr) {
    queue_->CopyPinned(device, bytes, host, queue_->stream());
  } else {
    ops_.CopyToHost(device, bytes, host, nullptr);
  }
}

// Copies each run of rows for the host at once.
void StepReadback::FetchLogits(const MatrixView& logits) {
  const size_t row_bytes = static_cast<size_t>(logits.cols) * SizeOf(logits.dtype);
  int64_t rows = 0;
  for (const Awaited& seq : sequences_) rows += seq.rows_for_host();
  logits_view_ = {};
  if (rows == 0) return;
  logits_view_ = {Room<std::byte>(static_cast<size_t>(rows) * row_bytes, &logits_), logits.dtype,
                  rows, logits.cols, logits.cols};
  int64_t next = 0, begin = 0, end = 0, fetched = 0;
  const auto fetch_run = [&] {
    if (begin == end) return;
    Fetch(logits.Rows(begin, end - begin).data, static_cast<size_t>(end - begin) * row_bytes,
          logits_view_.Rows(fetched, end - begin).data);
    fetched += end - begin;
  };
  for (const Awaited& seq : sequences_) {
    if (seq.rows_for_host() > 0) {
      if (end != next) {
        fetch_run();
        begin = next;
      }
      end = next + seq.rows_for_host();
    }
    next += seq.rows_in_batch();
  }
  fetch_run();
}

void StepReadback::Enqueue(const MatrixView& logits, const PagedKv& kv) {
  Fetch(batch_.output_buffer(), sequences_.empty() ? batch_.pool_bytes() : batch_.output_bytes(),
        outputs_.data());
  FetchLogits(logits);
  if (scored_rows_ > 0) {
    const auto count = static_cast<size_t>(scored_rows_);
    Fetch(batch_.scores(), count * sizeof(SampleRecord), Room<SampleRecord>(count, &scores_));
  }
  if (wants_windows_) {
    const size_t bytes =
        static_cast<size_t>(kv.shape.max_slots * kv.shape.lists_per_slot()) * sizeof(int32_t);
    Fetch(kv.first_live, bytes, Room<std::byte>(bytes, &first_pages_));
  }
  Mark();
}

void StepReadback::Mark() {
  if (event_ != nullptr) event_->Record(queue_->stream());
}

void StepReadback::Wait() {
  if (event_ != nullptr) event_->Wait();
}

// The logits as float32.
const float* StepReadback::Logits() {
  if (logits_view_.dtype != DType::kF64) return logits_.as<float>();
  const double* values = logits_.as<double>();
  float32_.assign(values, values + logits_view_.rows * logits_view_.cols);
  return float32_.data();
}

StepResult StepReadback::Deliver(const ExecutorLimits& limits, std::vector<AcpStats>* slots) {
  StepResult result;
  MoveSlots(moves_, limits.lists_per_slot, slots);
  for (const SharedSlot& taken : moves_.snapshots) {
    result.snapshots.push_back((*slots)[static_cast<size_t>(taken.to)]);
  }
  const StepOutputs outputs = batch_.OutputsAt(outputs_.as<std::byte>());
  const float* logits = Logits();
  const SampleRecord* scores = scores_.as<SampleRecord>();
  int64_t row = 0, row_for_host = 0;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Awaited& seq = sequences_[i];
    result.logits.push_back(seq.rows_for_host() == 0 ? nullptr
                                                     : logits + row_for_host * logits_view_.cols);
    row_for_host += seq.rows_for_host();
    result.scores.push_back(seq.scores == 0 ? nullptr : scores);
    scores += seq.scores;
    row += seq.rows_in_batch();
    FOX_CHECK(!seq.sampled || row > 0);  // its own row is the last one
    result.sampled.push_back(
        seq.sampled ? TokenOf(outputs.sampled[row - 1], seq.logprobs, limits.vocab_size)
                    : SampledToken{});
    FOX_CHECK(0 <= seq.slot && static_cast<size_t>(seq.slot) < slots->size());
    AcpStats& stats = (*slots)[static_cast<size_t>(seq.slot)];
    stats.blocks_total += outputs.blocks_total[i];
    stats.blocks_pruned += outputs.blocks_pruned[i];
    stats.pages_allocated = limits.lists_per_slot * PagesFor(seq.end);
    stats.pages_evicted += outputs.pages_evicted[i];
    stats.peak_pages = std::max(stats.peak_pages, stats.live_pages());
    stats.max_log_evicted_mass =
        std::max(stats.max_log_evicted_mass, outputs.max_log_evicted_mass[i]);
    result.stats.push_back(stats);
    result.lost_mass.push_back(outputs.lost_mass[i]);
  }
  result.free_pages = *outputs.free_pages;
  if (limits.snapshot_slots > 0) result.sole_pages = outputs.sole_pages;
  if (wants_windows_) result.first_pages = first_pages_.as<int32_t>();
  return result;
}

}  // namespace fox
