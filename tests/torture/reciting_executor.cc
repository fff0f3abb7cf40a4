// RecitingExecutor: see reciting_executor.h.
#include "tests/torture/reciting_executor.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace fox {

RecitingExecutor::RecitingExecutor(const ExecutorLimits& limits)
    : limits_(limits), tokens_(static_cast<size_t>(limits.slots())) {}

int32_t RecitingExecutor::Next(const std::vector<int32_t>& tokens, int64_t position) const {
  const auto end = std::find(tokens.begin(), tokens.begin() + position + 1, '|');
  const auto length = static_cast<int64_t>(end - tokens.begin());  // without bos
  if (end == tokens.begin() + position + 1 || length == 0) return ' ';
  return tokens[static_cast<size_t>(1 + position % length)];
}

absl::Status RecitingExecutor::Submit(const StepPlan& plan) {
  const int delay = step_delay_us;
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  const auto pages = [this](const std::vector<int32_t>& tokens) {
    return PagesFor(static_cast<int64_t>(tokens.size())) * limits_.lists_per_slot;
  };
  for (const int32_t slot : plan.release_slots) {
    std::vector<int32_t>& tokens = tokens_[static_cast<size_t>(slot)];
    used_pages_ -= pages(tokens);
    tokens = {};
  }
  size_t rows = 0;
  for (const PlannedSequence& sequence : plan.sequences) rows += sequence.logit_rows.size();
  const auto vocab = static_cast<size_t>(limits_.vocab_size);
  logits_.assign(rows * vocab, 0.0f);
  result_ = StepResult();
  float* row = logits_.data();
  for (const PlannedSequence& sequence : plan.sequences) {
    std::vector<int32_t>& tokens = tokens_[static_cast<size_t>(sequence.slot)];
    FOX_CHECK(static_cast<int64_t>(tokens.size()) == sequence.position);
    used_pages_ -= pages(tokens);
    tokens.insert(tokens.end(), sequence.token_ids.begin(), sequence.token_ids.end());
    used_pages_ += pages(tokens);
    result_.logits.push_back(sequence.logit_rows.empty() ? nullptr : row);
    for (const int32_t r : sequence.logit_rows) {
      row[Next(tokens, sequence.position + r)] = 50.0f;
      row += vocab;
    }
    result_.sampled.emplace_back(SampledToken{});
    AcpStats& stats = result_.stats.emplace_back();
    stats.pages_allocated = pages(tokens);
    stats.peak_pages = stats.pages_allocated;
  }
  FOX_CHECK(used_pages_ >= 0 && used_pages_ <= limits_.num_pages);
  result_.free_pages = limits_.num_pages - used_pages_;
  return absl::OkStatus();
}

std::string Recitation(const std::string& prompt, size_t tokens) {
  std::string text;
  while (text.size() < tokens) text += prompt;
  text.resize(tokens);
  return text;
}

}  // namespace fox
