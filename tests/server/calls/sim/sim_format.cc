// SimFormat: its rules and its records. See sim_format.h.
#include "tests/server/calls/sim/sim_format.h"

#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fixtures/character_tokenizer.h"

namespace fox::sim {
namespace {

// What a waiting record takes beside its text; more than its head on the wire.
constexpr int64_t kRecordBytes = 64;

}  // namespace

std::string EncodeRecord(const Record& record) {
  return absl::StrCat(std::string(1, static_cast<char>(record.kind)), record.prompt, ",",
                      record.sequence, ",", record.reason, ",", record.text.size(), ":",
                      record.text);
}

bool TakeRecord(std::string* bytes, Record* record) {
  const size_t colon = bytes->find(':');
  if (colon == std::string::npos) return false;
  *record = {};
  record->kind = static_cast<Record::Kind>(bytes->front());
  size_t size = 0;
  const char* at = bytes->data() + 1;
  const char* const end = bytes->data() + colon;
  const auto read = [&](auto* value) {
    const auto [next, error] = std::from_chars(at, end, *value);
    at = next + (next < end);
    return error == std::errc();
  };
  if (!read(&record->prompt) || !read(&record->sequence) || !read(&record->reason) ||
      !read(&size) || bytes->size() - colon - 1 < size) {
    return false;
  }
  record->text = bytes->substr(colon + 1, size);
  bytes->erase(0, colon + 1 + size);
  return true;
}

SimFormat::~SimFormat() { Check(dropped_ || taken_last_, "a call writes or drops its contents"); }

absl::StatusOr<CallOutline> SimFormat::ParseMessage() {
  Check(!std::exchange(parsed_, true), "the message is parsed once");
  converting_ = true;
  day_.Interrupt();
  converting_ = false;
  if (plan_.malformed) {
    day_.Count(CallMark::kMalformed);
    return absl::InvalidArgumentError("malformed");
  }
  CallOutline outline;
  outline.stream = plan_.stream;
  for (const PromptPlan& prompt : plan_.prompts) {
    outline.prompt_bytes.push_back(static_cast<int64_t>(prompt.text.size()));
  }
  return outline;
}

absl::StatusOr<GenerationSpec> SimFormat::ConvertPrompt(size_t prompt) {
  Check(parsed_ && prompt == converted_++, "prompts are converted in order, after the message");
  converting_ = true;
  day_.Interrupt();
  converting_ = false;
  const PromptPlan& plan = plan_.prompts.at(prompt);
  if (plan.invalid) {
    day_.Count(CallMark::kInvalidPrompts);
    return absl::InvalidArgumentError("invalid prompt");
  }
  GenerationSpec spec;
  spec.request_id = plan.request_id;
  spec.windows = false;
  Request request;
  request.prompt.push_back(CharacterTokenizer::kBos);
  for (const char c : plan.text) request.prompt.push_back(static_cast<unsigned char>(c));
  request.sampling.temperature = 0;
  request.stop.max_tokens = plan.max_tokens;
  request.flow_window = plan_.stream ? plan_.flow_window : 0;
  spec.sequences.assign(static_cast<size_t>(plan.sequences), request);
  if (!plan.choice.empty()) {
    spec.grammar = ChoiceGrammar({plan.choice});
    spec.grammar_field = "choice";
    day_.Count(CallMark::kGrammars);
  } else if (!plan.regex.empty()) {
    spec.grammar = GrammarSource{GrammarSource::Kind::kRegex, plan.regex};
    spec.grammar_field = "regex";
  }
  return spec;
}

void SimFormat::AddEvent(CallEvent event) {
  Check(!dropped_, "no event follows DropContents");
  Check(!taken_last_, "no event follows the end");
  Check(event.prompt < converted_, "an event's prompt was converted before");
  Record record;
  record.kind = Record::Kind::kPrompt;
  record.prompt = event.prompt;
  if (event.delta.has_delta()) {
    record.kind = Record::Kind::kText;
    record.sequence = event.delta.delta().index();
    record.text = event.delta.delta().text();
  } else if (event.delta.has_finish()) {
    record.kind = Record::Kind::kFinish;
    record.sequence = event.delta.finish().index();
    record.reason = event.delta.finish().reason();
  }
  int64_t& waiting = waiting_tokens_[event.sequence] += event.tokens;
  Check(!plan_.stream || plan_.flow_window == 0 || waiting <= plan_.flow_window,
        "unread tokens stay within the reader's window");
  AddRecord(record, event.sequence, event.tokens);
}

void SimFormat::AddRecord(const Record& record, RequestId sequence, int64_t tokens) {
  const int64_t held = kRecordBytes + static_cast<int64_t>(record.text.size());
  held_bytes_ += held;
  records_.push_back({EncodeRecord(record), sequence, tokens, held});
}

void SimFormat::AddKeepAlive() {
  Check(plan_.stream && !dropped_ && !taken_last_,
        "a sign of life belongs to a stream that goes on");
  AddRecord({}, 0, 0);
  day_.Count(CallMark::kKeepAlives);
}

Format::Output SimFormat::TakeOutput(bool last) {
  Check(!dropped_, "no output follows DropContents");
  Check(!taken_last_, "no output follows the end");
  if (plan_.prompts.empty()) {
    taken_last_ = true;
    return {kTokenizedAnswer, {}};
  }
  Check(last || (plan_.stream && HasOutput()), "a write before the end is a stream's");
  Output output;
  const size_t most = plan_.stream ? plan_.records_per_write : records_.size();
  for (size_t i = 0; i < most && !records_.empty(); ++i) {
    Waiting& waiting = records_.front();
    output.bytes += waiting.bytes;
    waiting_tokens_[waiting.sequence] -= waiting.tokens;
    if (waiting.tokens > 0) output.tokens.emplace_back(waiting.sequence, waiting.tokens);
    held_bytes_ -= waiting.held_bytes;
    records_.pop_front();
  }
  taken_last_ = last && records_.empty();
  return output;
}

void SimFormat::DropContents() {
  Check(!converting_, "contents stay while an admission thread uses the format");
  dropped_ = true;
  records_.clear();
  held_bytes_ = 0;
}

std::string SimFormat::EncodeFailure(const absl::Status& status, bool) const {
  Check(!status.ok(), "a failure is no success");
  day_.Interrupt();
  return absl::StrCat("!", status.message());
}

}  // namespace fox::sim
