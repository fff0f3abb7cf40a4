// ScriptedExecutor: see scripted_executor.h.
#include "tests/e2e/scripted_executor.h"

#include <thread>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"
#include "tests/e2e/character_tokenizer.h"

namespace fox {

ScriptedText::ScriptedText(const std::string& prompt) {
  Feed(CharacterTokenizer::kBos);
  for (const char c : prompt) Feed(static_cast<unsigned char>(c));
}

void ScriptedText::Feed(int32_t token) {
  hash_ = (hash_ ^ static_cast<uint32_t>(token + 1)) * 2654435761u;
  hash_ ^= hash_ >> 15;
  ++tokens_;
}

char ScriptedText::Take() {
  const int32_t next = Next();
  Feed(next);
  return static_cast<char>(next);
}

ScriptedExecutor::ScriptedExecutor(const ExecutorLimits& limits,
                                   std::shared_ptr<ExecutorScript> script)
    : limits_(limits), script_(std::move(script)) {}

absl::Status ScriptedExecutor::Submit(const StepPlan& plan) {
  result_ = Execute(plan);
  return result_.status();
}

int64_t ScriptedExecutor::PagesOf(const ScriptedText& text) const {
  return PagesFor(text.tokens()) * limits_.lists_per_slot;
}

absl::StatusOr<StepResult> ScriptedExecutor::Execute(const StepPlan& plan) {
  script_->step_waits = true;
  const std::lock_guard<std::mutex> lock(script_->step);
  script_->step_waits = false;
  if (script_->fail) return absl::UnavailableError("scripted failure");
  const int delay = script_->step_delay_us;
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  for (const int32_t slot : plan.release_slots) {
    used_pages_ -= PagesOf(texts_[slot]);
    texts_.erase(slot);
  }

  size_t rows = 0;
  for (const PlannedSequence& sequence : plan.sequences) rows += sequence.logit_rows.size();
  const auto vocab = static_cast<size_t>(limits_.vocab_size);
  logits_.assign(rows * vocab, 0.0f);
  StepResult result;
  float* logits = logits_.data();
  for (const PlannedSequence& sequence : plan.sequences) {
    ScriptedText& text = texts_[sequence.slot];
    FOX_CHECK(text.tokens() == sequence.position);
    used_pages_ -= PagesOf(text);
    result.logits.push_back(sequence.logit_rows.empty() ? nullptr : logits);
    auto row = sequence.logit_rows.begin();
    for (size_t i = 0; i < sequence.token_ids.size(); ++i) {
      text.Feed(sequence.token_ids[i]);
      if (row == sequence.logit_rows.end() || *row != static_cast<int32_t>(i)) continue;
      logits[text.Next()] = 8.0f;
      logits += vocab;
      ++row;
    }
    FOX_CHECK(row == sequence.logit_rows.end());  // they ascend
    used_pages_ += PagesOf(text);
    result.sampled.emplace_back(SampledToken{});
    AcpStats& stats = result.stats.emplace_back();
    stats.pages_allocated = PagesOf(text);
    stats.peak_pages = stats.pages_allocated;
    stats.log_tolerance = sequence.log_tolerance;
  }
  FOX_CHECK(used_pages_ >= 0 && used_pages_ <= limits_.num_pages);
  result.free_pages = limits_.num_pages - used_pages_;
  return result;
}

}  // namespace fox
