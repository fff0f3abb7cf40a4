// AnswerReader: see answer_reader.h.
#include "server/http/openai/answer_reader.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "server/http/openai/completion_format.h"
#include "server/process/random_id.h"

namespace fox {
namespace {

using PartKind = AnswerPart::Kind;

// The part that `kind` continues, or a new one.
AnswerPart& PartOf(PartKind kind, size_t call, std::vector<AnswerPart>* parts) {
  if (parts->empty() || parts->back().kind != kind || parts->back().call != call) {
    parts->push_back({.kind = kind, .call = call});
  }
  return parts->back();
}

std::vector<std::string> OpeningsOf(const AnswerForm& form) {
  if (form.tools == nullptr) return {};
  FOX_CHECK(!form.tools->call.empty());
  return {form.tools->separator + form.tools->call, form.tools->call};
}

std::vector<std::string> EndOfThought(const AnswerForm& form) {
  if (form.thinking == nullptr) return {};
  return {form.thinking->end};
}

}  // namespace

AnswerForm AnswerForm::Of(const v1::GenerateRequest& settings, const v1::ChatMessages& chat,
                          const ChatFormat& format) {
  AnswerForm form;
  // A request with tools that the format lacks is refused, but not before its answer is prepared.
  if (chat.tools_size() > 0 && format.tools().has_value()) form.tools = &*format.tools();
  form.calls_only = chat.call_required() || chat.has_call_name();
  // A grammar holds from the first token, and knows no thoughts; calls may follow one.
  const bool thinks = !chat.continue_final_message() && !form.calls_only &&
                      !HasGrammar(settings.sampling()) && format.thinking().has_value();
  if (!thinks) return form;
  form.thinking = &*format.thinking();
  const bool prompted = !chat.has_add_generation_prompt() || chat.add_generation_prompt();
  const bool wanted = !chat.has_enable_thinking() || chat.enable_thinking();
  form.begins_in_thought = prompted && wanted && format.opens_thought();
  return form;
}

AnswerReader::AnswerReader(const AnswerForm& form)
    : form_(form),
      openings_(OpeningsOf(form)),
      call_matcher_(openings_),
      thought_matcher_(EndOfThought(form)),
      place_(form.begins_in_thought     ? Place::kThought
             : form.thinking != nullptr ? Place::kStart
                                        : Place::kText) {}

void AnswerReader::Read(absl::string_view piece, std::vector<AnswerPart>* parts) {
  for (const char byte : piece) ReadByte(byte, parts);
}

void AnswerReader::ReadByte(char byte, std::vector<AnswerPart>* parts) {
  if (place_ == Place::kStart) return ReadStart(byte, parts);
  if (place_ == Place::kThought) return ReadThought(byte, parts);
  if (place_ == Place::kThoughtEnd) {
    if (byte == '\n') return;
    place_ = Place::kText;
  }
  if (place_ == Place::kText) return ReadText(byte, parts);
  if (place_ == Place::kArguments) return ReadArgument(byte, parts);
  held_ += byte;
  if (place_ == Place::kName && held_.ends_with(form_.tools->arguments)) {
    held_.resize(held_.size() - form_.tools->arguments.size());
    AnswerPart begun = {.kind = PartKind::kCall, .call = calls_};
    begun.id = absl::StrCat("call_", absl::Hex(RandomSeed(), absl::kZeroPad16));
    begun.name = std::exchange(held_, {});
    parts->push_back(std::move(begun));
    place_ = Place::kArguments;
  } else if (place_ == Place::kCallEnd && held_.size() == form_.tools->call_end.size()) {
    held_.clear();
    ++calls_;
    call_matcher_ = StopMatcher(openings_);
    place_ = Place::kText;
  }
}

void AnswerReader::TellHeld(PartKind kind, size_t bytes, std::vector<AnswerPart>* parts) {
  FOX_CHECK(bytes <= held_.size());
  if (bytes > 0) PartOf(kind, 0, parts).text.append(held_, 0, bytes);
  held_.erase(0, bytes);
}

// A thought begins with its tag, or it is none.
void AnswerReader::ReadStart(char byte, std::vector<AnswerPart>* parts) {
  held_ += byte;
  const std::string& tag = form_.thinking->start;
  const size_t begin = held_.find_first_not_of(" \t\r\n");
  const absl::string_view seen = begin == held_.npos ? "" : absl::string_view(held_).substr(begin);
  if (!absl::StartsWith(tag, seen)) {
    place_ = Place::kText;
    for (const char first : std::exchange(held_, {})) ReadText(first, parts);
  } else if (seen.size() == tag.size()) {
    place_ = Place::kThought;
    held_.clear();
  }
}

void AnswerReader::ReadThought(char byte, std::vector<AnswerPart>* parts) {
  if (!thought_begun_ && held_.empty() && byte == '\n') return;
  held_ += byte;
  const bool ends = thought_matcher_.Push(byte) >= 0;
  const size_t open = ends ? form_.thinking->end.size() : thought_matcher_.held();
  FOX_CHECK(open <= held_.size());
  const size_t last =
      absl::string_view(held_).substr(0, held_.size() - open).find_last_not_of('\n');
  if (last != absl::string_view::npos) {
    thought_begun_ = true;
    TellHeld(PartKind::kThought, last + 1, parts);
  }
  if (!ends) return;
  held_.clear();
  place_ = Place::kThoughtEnd;
}

void AnswerReader::EndText(bool cut, std::vector<AnswerPart>* parts) {
  if (place_ == Place::kThought) return TellHeld(PartKind::kThought, held_.size(), parts);
  if (place_ == Place::kStart) return TellHeld(PartKind::kText, held_.size(), parts);
  if (place_ != Place::kText) return;
  if (form_.calls_only || (cut && calls_ > 0)) return held_.clear();
  const size_t tag = held_.empty() ? held_.npos : held_.find(form_.tools->trigger[0]);
  // A tag's first letter alone is more likely text, as in "a < b", and a separator an end of line.
  const size_t least = cut ? 2 : held_.empty() ? 0 : form_.tools->trigger.size();
  if (tag == held_.npos || held_.size() - tag < least)
    TellHeld(PartKind::kText, held_.size(), parts);
  held_.clear();
}

void AnswerReader::ReadText(char byte, std::vector<AnswerPart>* parts) {
  held_ += byte;
  const int opening = call_matcher_.Push(byte);
  size_t open = call_matcher_.held();
  if (opening >= 0) {
    open = openings_[static_cast<size_t>(opening)].size();
    place_ = Place::kName;
  }
  FOX_CHECK(open <= held_.size());
  TellHeld(PartKind::kText, held_.size() - open, parts);
  if (opening >= 0) held_.clear();
}

// Up to the brace that ends the object.
void AnswerReader::ReadArgument(char byte, std::vector<AnswerPart>* parts) {
  PartOf(PartKind::kCall, calls_, parts).text += byte;
  if (!quotes_.open() && byte == '{') ++depth_;
  if (!quotes_.open() && byte == '}' && --depth_ == 0) place_ = Place::kCallEnd;
  quotes_.Read(byte);
}

ChatAnswer::ChatAnswer(const CompletionRequest& request, const ConversionContext& context)
    : context_(context),
      reader_(AnswerForm::Of(request.settings, request.prompts[0].messages(), *context.chat)) {}

std::vector<AnswerPart> ChatAnswer::Read(const v1::GenerateDelta& event) {
  std::vector<AnswerPart> parts;
  if (event.has_prompt()) {
    prompt_tokens = event.prompt().prompt_tokens();
    relaxed_.assign(event.prompt().relaxed().begin(), event.prompt().relaxed().end());
  } else if (event.has_delta()) {
    const auto added = static_cast<uint32_t>(event.delta().token_ids_size());
    if (reader_.in_thought()) thought_tokens += added;
    reader_.Read(event.delta().text(), &parts);
  } else if (event.has_finish()) {
    finish = event.finish();
    const bool cut = finish.reason() != v1::STOP;
    reader_.EndText(cut, &parts);
    called = !cut && reader_.calls() > 0;
    tokens = finish.usage().completion_tokens();
    cached_tokens = finish.usage().cached_tokens();
  }
  return parts;
}

std::string ChatAnswer::Fox() const {
  const int64_t all = int64_t{prompt_tokens} + int64_t{tokens};
  return FoxObject({{all, finish.acp()}}, cached_tokens, relaxed_, context_);
}

}  // namespace fox
