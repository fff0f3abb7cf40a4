// CallDay: the promises that it checks. See call_day.h.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/server/calls/sim/call_day.h"

namespace fox::sim {

// The memory that formats and transports really hold is charged to the budget, and little more.
void CallDay::CheckBudget() {
  constexpr int64_t kMaxSlack = 16 << 10;  // of a share: its steps, and the message at first
  const CallBudget& budget = core_->core->calls();
  int64_t held = 0, in_flight_of_failed = 0;
  for (const ClientPtr& client : open_) {
    const std::shared_ptr<Call> call = client->call.lock();
    if (call == nullptr) continue;
    held += client->format->held_bytes();
    const bool failed = client->transport->ended() && !client->transport->status().ok();
    (failed ? in_flight_of_failed : held) += client->transport->in_flight_bytes();
  }
  if (held > budget.bytes()) {
    ReportViolation(absl::StrCat(held, " bytes are held and ", budget.bytes(), " charged"));
  }
  if (budget.bytes() > held + in_flight_of_failed + kMaxSlack * budget.calls()) {
    ReportViolation(absl::StrCat(budget.bytes(), " bytes are charged and ", held, " held"));
  }
  if (budget.bytes() > budget.max_bytes() || budget.calls() > budget.max_calls()) {
    ReportViolation("the budget is overdrawn");
  }
}

// All that a client got, once its transport has let go of the answer.
void CallDay::CheckAnswer(const Client& client) {
  const SimTransport& transport = *client.transport;
  std::string bytes = transport.received();
  for (const char c : bytes) report_.trace = Mix(report_.trace, static_cast<unsigned char>(c));
  const bool whole = client.closed.ok();
  if (whole && !transport.ended()) return ReportViolation("an answer without an end");
  if (client.cut_in_write && !transport.abandoned() && transport.ended() &&
      transport.status() == AnswersUnread()) {
    ReportViolation("the write of a reader whose answer fills the budget is not cut off");
  }
  const bool ok = whole && transport.status().ok();
  if (whole && !ok) CheckFailure(client);
  if (client.plan.prompts.empty()) {
    if (ok && bytes != kTokenizedAnswer) ReportViolation("another answer than the tokenizer's");
    return;
  }
  struct Sequence {
    std::string text;
    int finishes = 0, reason = 0;
  };
  std::map<std::pair<size_t, uint32_t>, Sequence> sequences;
  std::map<size_t, int> begun;
  Record record;
  while (TakeRecord(&bytes, &record)) {
    if (record.kind == Record::Kind::kKeepAlive) continue;
    if (record.kind == Record::Kind::kPrompt) {
      ++begun[record.prompt];
      continue;
    }
    if (begun[record.prompt] != 1) ReportViolation("a prompt's first event is not one, or late");
    Sequence& sequence = sequences[{record.prompt, record.sequence}];
    if (sequence.finishes > 0) ReportViolation("an event after the sequence's end");
    if (record.kind == Record::Kind::kText) sequence.text += record.text;
    if (record.kind == Record::Kind::kFinish) {
      ++sequence.finishes;
      sequence.reason = record.reason;
    }
  }
  if (whole && (ok ? !bytes.empty() : bytes.substr(0, 1) != "!")) {
    ReportViolation("the answer ends otherwise than its form says");
  }
  for (const auto& [key, sequence] : sequences) {
    if (key.first >= client.plan.prompts.size() ||
        static_cast<int32_t>(key.second) >= client.plan.prompts[key.first].sequences) {
      return ReportViolation("an event of no sequence");
    }
    const std::string wrong =
        CheckSequence(client, key.first, sequence.text, sequence.finishes, sequence.reason);
    if (!wrong.empty()) ReportViolation(wrong);
  }
  if (!ok) return;
  Count(client.plan.stream ? CallMark::kStreams : CallMark::kWholeAnswers);
  for (size_t i = 0; i < client.plan.prompts.size(); ++i) {
    for (int32_t j = 0; j < client.plan.prompts[i].sequences; ++j) {
      if (sequences[{i, static_cast<uint32_t>(j)}].finishes != 1) {
        ReportViolation("a sequence of an answer without an end");
      }
    }
  }
}

std::string CallDay::CheckSequence(const Client& client, size_t prompt, const std::string& text,
                                   int finishes, int reason) const {
  const PromptPlan& plan = client.plan.prompts[prompt];
  const bool chosen = !plan.choice.empty();
  const std::string expected =
      chosen ? plan.choice : ExpectedText(plan.text, static_cast<size_t>(plan.max_tokens));
  if (expected.compare(0, text.size(), text) != 0) {
    return absl::StrCat("the text '", text, "' instead of '", expected, "'");
  }
  if (finishes == 0) return "";
  if (reason == v1::ABORT) {
    return client.aborted.count(prompt) > 0 ? "" : "an abort that no client asked for";
  }
  const bool cut = chosen && static_cast<int32_t>(expected.size()) > plan.max_tokens;
  const int natural =
      chosen && !cut && static_cast<int32_t>(text.size()) < plan.max_tokens ? v1::STOP : v1::LENGTH;
  if (reason != natural && !(chosen && reason == v1::STOP)) {
    return absl::StrCat("a sequence ends for reason ", reason);
  }
  if (!cut && text != expected) return absl::StrCat("the text ends after '", text, "'");
  return "";
}

void CallDay::CheckFailure(const Client& client) {
  const absl::Status& status = client.transport->status();
  Count(CallMark::kFailures);
  if (absl::IsDeadlineExceeded(status)) Count(CallMark::kDeadlines);
  if (absl::IsAlreadyExists(status)) Count(CallMark::kTakenIds);
  if (status == AnswersUnread()) Count(CallMark::kAnswersUnread);
  if (!MayFailWith(client, status.code())) {
    ReportViolation("a call fails without a cause: " + status.ToString());
  }
}

bool CallDay::MayFailWith(const Client& client, absl::StatusCode code) const {
  const std::vector<PromptPlan>& prompts = client.plan.prompts;
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return client.plan.malformed ||
             (!load_.roomy && (client.transport->status() == AnswerTooLarge() ||
                               client.transport->status() == MessageTooLarge())) ||
             std::any_of(prompts.begin(), prompts.end(), [](const auto& p) { return p.invalid; });
    case absl::StatusCode::kAlreadyExists:
      return load_.ids > 0;
    case absl::StatusCode::kDeadlineExceeded:
      return client.has_deadline;
    case absl::StatusCode::kResourceExhausted:
      // The queue may be longer than the deadline, and four grammars of a client may wait.
      return !load_.roomy || client.has_deadline ||
             std::any_of(prompts.begin(), prompts.end(),
                         [](const auto& p) { return !p.choice.empty(); });
    case absl::StatusCode::kUnavailable:
      return drained_ || executor_fails_ || hangs_;
    case absl::StatusCode::kCancelled:  // aborted while its grammar waited
      return !client.aborted.empty();
    default:
      return false;
  }
}

void CallDay::CheckEnd(bool engine_works) {
  for (const std::weak_ptr<Call>& call : calls_) {
    if (engine_works && !call.expired()) return ReportViolation("a call outlives its end");
  }
  ServerCore& core = *core_->core;
  if (core.calls().calls() != 0 || core.calls().bytes() != 0) {
    ReportViolation(absl::StrCat(core.calls().calls(), " calls and ", core.calls().bytes(),
                                 " bytes stay in the budget"));
  }
  if (!core.registry().empty()) ReportViolation("an id stays registered");
  if (!engine_works) return;
  if (core.admitting() != 0) ReportViolation("a prompt stays counted in admission");
  const EngineStats stats = core_->engine->stats();
  if (!executor_fails_ && stats.free_pages != stats.num_pages) {
    ReportViolation("pages stay taken");
  }
}

}  // namespace fox::sim
