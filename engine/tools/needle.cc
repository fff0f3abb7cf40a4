// Texts of needle and question, and haystacks made of paragraphs. See needle.h.
#include "engine/tools/needle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fox {
namespace {

constexpr char kAsked[] = "What was the name of the old captain?";
constexpr char kAnswer[] = "The name of the old captain was";
constexpr std::array<const char*, 8> kValues = {"Barnaby",  "Margaret", "Philip", "Oliver",
                                                "Thompson", "Jonathan", "Edward", "Hamilton"};
constexpr char kGap[] = "\n\n";
constexpr double kGoldenRatio = 0.6180339887498949;

const char* ValueOf(int64_t trial) { return kValues[static_cast<size_t>(trial) % kValues.size()]; }

}  // namespace

std::string NeedlePrompts::Question() { return absl::StrCat(kAsked, " ", kAnswer); }

std::string NeedlePrompts::Needle(int64_t trial) {
  return absl::StrCat(Question(), " ", ValueOf(trial), ".");
}

absl::StatusOr<int64_t> NeedlePrompts::Count(const std::string& text) const {
  const auto ids = tokenizer_->Encode(text, false);
  if (!ids.ok()) return ids.status();
  return static_cast<int64_t>(ids->size());
}

absl::StatusOr<NeedlePrompts> NeedlePrompts::Make(const Tokenizer& tokenizer,
                                                  std::optional<int32_t> bos,
                                                  const std::string& text) {
  NeedlePrompts prompts(tokenizer, bos);
  for (const auto line : absl::StrSplit(text, '\n')) {
    Paragraph paragraph;
    paragraph.text = std::string(absl::StripAsciiWhitespace(line));
    if (paragraph.text.empty() || paragraph.text == std::string(1, '\0')) continue;
    const auto count = prompts.Count(paragraph.text + kGap);
    if (!count.ok()) return count.status();
    paragraph.tokens = *count;
    prompts.paragraphs_.push_back(std::move(paragraph));
  }
  if (prompts.paragraphs_.empty()) return absl::InvalidArgumentError("the text has no paragraph");
  const auto question = tokenizer.Encode(Question(), false);
  if (!question.ok()) return question.status();
  std::set<int32_t> first;
  for (const char* value : kValues) {
    const auto both = tokenizer.Encode(absl::StrCat(Question(), " ", value), false);
    if (!both.ok()) return both.status();
    if (both->size() <= question->size() ||
        !std::equal(question->begin(), question->end(), both->begin()) ||
        !first.insert((*both)[question->size()]).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("this tokenizer does not tell '", value, "' from others by a first token"));
    }
    prompts.values_.emplace_back(both->begin() + static_cast<ptrdiff_t>(question->size()),
                                 both->end());
  }
  return prompts;
}

std::vector<const NeedlePrompts::Paragraph*> NeedlePrompts::Haystack(int64_t tokens,
                                                                     int64_t trial) const {
  // Multiples of the golden ratio spread any number of trials evenly over the text.
  const double place = static_cast<double>(trial) * kGoldenRatio;
  const auto count = static_cast<int64_t>(paragraphs_.size());
  const auto start = static_cast<int64_t>((place - std::floor(place)) * static_cast<double>(count));
  const int64_t longest = tokens / 8;  // with longer ones the needle would miss its depth by far
  std::vector<const Paragraph*> haystack;
  int64_t without = 0;  // paragraphs in a row that did not fit
  for (int64_t i = start; without < count; ++i) {
    const Paragraph& paragraph = paragraphs_[static_cast<size_t>(i % count)];
    if (paragraph.tokens > std::min(tokens, longest)) {
      ++without;
      continue;
    }
    without = 0;
    tokens -= paragraph.tokens;
    haystack.push_back(&paragraph);
  }
  return haystack;
}

std::string NeedlePrompts::Text(int64_t room, std::optional<double> depth, int64_t trial) const {
  const std::vector<const Paragraph*> haystack = Haystack(room, trial);
  int64_t size = 0, before = 0;
  for (const Paragraph* paragraph : haystack) size += paragraph->tokens;
  const std::string needle = Needle(trial) + kGap;
  std::string text;
  bool placed = !depth;
  for (const Paragraph* paragraph : haystack) {
    // Between the two paragraphs whose border is nearest to the wanted depth.
    const double middle = static_cast<double>(before) + static_cast<double>(paragraph->tokens) / 2;
    if (!placed && middle >= *depth * static_cast<double>(size)) {
      text += needle;
      placed = true;
    }
    text += paragraph->text + kGap;
    before += paragraph->tokens;
  }
  if (!placed) text += needle;
  return text + Question();
}

absl::StatusOr<NeedlePrompt> NeedlePrompts::Prompt(int64_t tokens, std::optional<double> depth,
                                                   int64_t trial) const {
  NeedlePrompt made;
  made.value = values_[static_cast<size_t>(trial) % values_.size()];
  for (const auto& value : values_) made.choices.push_back(value.front());
  if (bos_) made.prompt.push_back(*bos_);
  const auto fixed = made.prompt.size() + made.value.size();
  // A text has not quite the tokens of its paragraphs one by one.
  for (int64_t room = tokens; room >= 0;) {
    made.text = Text(room, depth, trial);
    const auto ids = tokenizer_->Encode(made.text, false);
    if (!ids.ok()) return ids.status();
    const auto excess = static_cast<int64_t>(fixed + ids->size()) - tokens;
    if (excess <= 0) {
      made.prompt.insert(made.prompt.end(), ids->begin(), ids->end());
      return made;
    }
    room -= excess;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(tokens, " tokens do not hold the needle and the question"));
}

}  // namespace fox
