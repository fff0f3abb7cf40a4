// BatchBuilder: lays a step's arrays out in one block, then fills and sends them.
#include "engine/run/batch_builder.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace fox {
PlannedSequence PaddingSequence(int64_t position) {
  PlannedSequence padding;
  padding.slot = -1;
  padding.position = position;
  padding.token_ids = {0};
  padding.logit_rows = {0};
  return padding;
}

BatchBuilder::BatchBuilder(Ops& ops, int64_t max_rows, int64_t max_seqs, int64_t max_logit_rows,
                           int64_t num_slots)
    : ops_(ops),
      max_seqs_(max_seqs),
      max_logit_rows_(max_logit_rows),
      max_scored_rows_(max_rows + 1) {
  static_assert(std::max({alignof(SampleRow), alignof(SampleRecord), alignof(int64_t)}) <= 16);
  size_t end = 0;
  const auto take = [&end](int64_t count, size_t size) {
    const size_t at = end;
    end += (static_cast<size_t>(count) * size + 15) / 16 * 16;
    return at;
  };
  take(1, sizeof(int32_t) + sizeof(PoolFault));
  sole_pages_ = take(num_slots, sizeof(int32_t));
  sampled_ = take(max_logit_rows, sizeof(SampleRecord));
  counts_ = take(3 * max_seqs, sizeof(int64_t));
  mass_ = take(max_seqs, sizeof(double));
  lost_mass_ = take(max_seqs, sizeof(LostMass));
  output_bytes_ = end;
  position_ = take(max_seqs, sizeof(int64_t));
  row_begin_ = take(max_seqs + 1, sizeof(int64_t));
  tolerance_ = take(max_seqs, sizeof(double));
  logit_row_ = take(max_logit_rows, sizeof(int64_t));
  sample_ = take(max_logit_rows, sizeof(SampleRow));
  slot_ = take(max_seqs, sizeof(int32_t));
  token_ = take(max_rows, sizeof(int32_t));
  scored_row_ = take(max_scored_rows_, sizeof(int64_t));
  score_ = take(max_scored_rows_, sizeof(ScoreRow));
  block_ = ops.Allocate(end);
  scores_ = ops.Allocate(static_cast<size_t>(max_scored_rows_) * sizeof(SampleRecord));
  sampled_tokens_ = ops.Allocate(static_cast<size_t>(num_slots) * sizeof(int32_t));
  std::byte* base = block_.as<std::byte>();
  outputs_ = OutputsAt(base);
  batch_.position = At<int64_t>(base, position_);
  batch_.row_begin = At<int64_t>(base, row_begin_);
  batch_.log_tolerance = At<double>(base, tolerance_);
  batch_.slot = At<int32_t>(base, slot_);
  batch_.token_ids = At<int32_t>(base, token_);
  batch_.sampled_tokens = sampled_tokens_.as<int32_t>();
  logit_rows_ = At<int64_t>(base, logit_row_);
  sample_rows_ = At<SampleRow>(base, sample_);
  scored_rows_ = At<int64_t>(base, scored_row_);
  score_rows_ = At<ScoreRow>(base, score_);
}

StepOutputs BatchBuilder::OutputsAt(std::byte* block) const {
  int64_t* counts = At<int64_t>(block, counts_);
  return {At<int32_t>(block, 0),
          At<PoolFault>(block, sizeof(int32_t)),
          At<int32_t>(block, sole_pages_),
          counts,
          counts + max_seqs_,
          counts + 2 * max_seqs_,
          At<double>(block, mass_),
          At<LostMass>(block, lost_mass_),
          At<SampleRecord>(block, sampled_)};
}

void BatchBuilder::PlaceScores(const PlannedSequence& seq, int64_t first_row, std::byte* staging) {
  for (const auto& [row, how] : seq.scores) {
    FOX_CHECK(num_scored_rows_ < max_scored_rows_ && 0 <= row &&
              row < static_cast<int32_t>(seq.token_ids.size()));
    At<int64_t>(staging, scored_row_)[num_scored_rows_] = first_row + row;
    At<ScoreRow>(staging, score_)[num_scored_rows_++] = how;
  }
}

void BatchBuilder::Build(const StepPlan& plan, int64_t seqs, std::byte* staging, Stream stream) {
  static const PlannedSequence padding = PaddingSequence(0);
  const auto planned = static_cast<int64_t>(plan.sequences.size());
  const int64_t total = std::max(seqs, planned);
  FOX_CHECK(total <= max_seqs_);
  std::fill_n(staging + counts_, mass_ - counts_, std::byte{0});
  std::fill_n(At<double>(staging, mass_), max_seqs_, kNoMass);
  std::fill_n(At<LostMass>(staging, lost_mass_), max_seqs_, LostMass());
  num_scored_rows_ = 0;
  int64_t rows = 0, logit_rows = 0, longest = 0, decodes = 0;
  int32_t masks = 0;
  int64_t* row_begin = At<int64_t>(staging, row_begin_);
  for (int64_t i = 0; i < total; ++i) {
    const PlannedSequence& seq = i < planned ? plan.sequences[static_cast<size_t>(i)] : padding;
    const auto tokens = static_cast<int64_t>(seq.token_ids.size());
    FOX_CHECK(tokens > 0 && seq.position >= 0);
    if (tokens == 1) {
      FOX_CHECK(decodes == i);  // decodes come first
      ++decodes;
    }
    row_begin[i] = rows;
    longest = std::max(longest, seq.position + tokens);
    At<int64_t>(staging, position_)[i] = seq.position;
    At<double>(staging, tolerance_)[i] = seq.log_tolerance;
    At<int32_t>(staging, slot_)[i] = seq.slot;
    FOX_CHECK(token_ + static_cast<size_t>(rows + tokens) * sizeof(int32_t) <= block_.bytes());
    std::copy(seq.token_ids.begin(), seq.token_ids.end(), At<int32_t>(staging, token_) + rows);
    const bool unwanted = seqs > 0 && seq.logit_rows.empty();
    const std::vector<int32_t>& wanted = unwanted ? padding.logit_rows : seq.logit_rows;
    for (size_t k = 0; k < wanted.size(); ++k, ++logit_rows) {
      FOX_CHECK(logit_rows < max_logit_rows_ && 0 <= wanted[k] && wanted[k] < tokens);
      At<int64_t>(staging, logit_row_)[logit_rows] = rows + wanted[k];
      SampleRow& sample = At<SampleRow>(staging, sample_)[logit_rows];
      sample = {};
      if (!seq.sample || k + 1 < wanted.size()) continue;
      sample = *seq.sample;
      sample.slot = seq.slot;
      if (seq.masked()) sample.logits_processor.mask = masks++;
    }
    PlaceScores(seq, rows, staging);
    rows += tokens;
  }
  row_begin[total] = rows;
  if (num_scored_rows_ == 1) {
    At<int64_t>(staging, scored_row_)[1] = At<int64_t>(staging, scored_row_)[0];
    At<ScoreRow>(staging, score_)[1] = At<ScoreRow>(staging, score_)[0];
  }
  batch_.num_seqs = static_cast<int>(total);
  batch_.num_rows = rows;
  batch_.num_decodes = static_cast<int>(decodes);
  batch_.max_tokens = longest;
  batch_.small = rows == 1 && longest <= kSmallBatchTokens;
  num_logit_rows_ = logit_rows;
  // Sampled tokens are written before they are read, so they need not be sent.
  const size_t tokens_end = token_ + static_cast<size_t>(rows) * sizeof(int32_t);
  const size_t scores_end = score_ + static_cast<size_t>(num_scored_rows_ + 1) * sizeof(ScoreRow);
  const size_t end = ((num_scored_rows_ > 0 ? scores_end : tokens_end) + 15) / 16 * 16;
  std::byte* const to = block_.as<std::byte>() + counts_;
  if (DeviceQueue* const queue = ops_.queue(); queue != nullptr) {
    queue->CopyPinned(staging + counts_, end - counts_, to, stream);
  } else {
    ops_.CopyToDevice(staging + counts_, end - counts_, to, stream);
  }
}

}  // namespace fox
