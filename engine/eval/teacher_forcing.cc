// TeacherForcing: runs one sequence in slot 0, step by step.
#include "engine/eval/teacher_forcing.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace fox {

absl::Status CheckPages(const ExecutorLimits& limits, int64_t position, int64_t count,
                        int64_t free_pages) {
  const int64_t taken = (PagesFor(position + count) - PagesFor(position)) * limits.lists_per_slot;
  if (taken <= free_pages) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room in the KV cache after ", position, " tokens: ", limits.num_pages,
                   " pages, of which ", free_pages, " are free and ", taken, " needed"));
}

absl::Status RunTeacherForced(ModelRunner& runner, const std::vector<int32_t>& ids,
                              const TeacherForcingOptions& options, const LogitsSink& sink) {
  const ExecutorLimits& limits = runner.limits();
  const auto length = static_cast<int64_t>(ids.size());
  if (length > limits.max_model_len) {
    return absl::OutOfRangeError(
        absl::StrCat(length, " tokens are more than the longest sequence, ", limits.max_model_len));
  }
  for (int32_t id : ids) {
    if (id < 0 || id >= limits.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is not in the vocabulary of ", limits.vocab_size));
    }
  }
  int64_t free_pages = limits.num_pages;
  const int64_t decode_from = options.decode_from < 0 ? length : options.decode_from;
  StepPlan plan;
  plan.release_slots = {0};
  std::vector<std::byte> host;
  for (int64_t position = 0; position < length;) {
    const int64_t wanted = position < decode_from
                               ? std::min(options.chunk, std::min(decode_from, length) - position)
                               : 1;
    const int64_t count = std::min(wanted, limits.max_num_batched_tokens);
    if (absl::Status s = CheckPages(limits, position, count, free_pages); !s.ok()) return s;
    PlannedSequence seq;
    seq.position = position;
    seq.token_ids.assign(ids.begin() + position, ids.begin() + position + count);
    seq.logit_rows.resize(static_cast<size_t>(count));
    std::iota(seq.logit_rows.begin(), seq.logit_rows.end(), 0);
    seq.log_tolerance = options.log_tolerance;
    plan.sequences = {std::move(seq)};
    const auto result = runner.Run(plan);
    if (!result.ok()) return result.status();
    free_pages = result->free_pages;
    if (options.after_step) options.after_step(*result);
    if (sink) {
      MatrixView logits = runner.logits();
      host.resize(static_cast<size_t>(logits.rows * logits.cols) * SizeOf(logits.dtype));
      runner.ops().CopyToHost(logits.data, host.size(), host.data(), nullptr);
      logits.data = host.data();
      sink(position, logits);
    }
    plan.release_slots.clear();
    position += count;
  }
  return absl::OkStatus();
}

}  // namespace fox
