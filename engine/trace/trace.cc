// Trace: writes events as JSON text. All names are our own, so nothing needs escaping.
#include "engine/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/steady_clock.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

constexpr int kEngineRow = 1, kFirstLane = 2, kLanes = 2;

const char* NameOf(const Finish& finish) {
  if (!finish.status.ok()) return "failed";
  if (finish.reason == FinishReason::kStop) return "stop";
  return finish.reason == FinishReason::kLength ? "length" : "abort";
}

std::string StepArguments(const StepPlan& plan, const StepResult& result) {
  return absl::StrCat("{\"sequences\":", plan.sequences.size(), ",\"tokens\":", plan.num_tokens(),
                      ",\"released_slots\":", plan.release_slots.size(),
                      ",\"free_pages\":", result.free_pages, "}");
}

std::string RequestArguments(const Request& request, const Finish& finish) {
  const RequestStats& stats = finish.stats;
  const double mass = stats.acp.max_log_evicted_mass;
  return absl::StrCat(
      "{\"prompt_tokens\":", stats.prompt_tokens,
      ",\"completion_tokens\":", stats.completion_tokens, ",\"preemptions\":", stats.preemptions,
      ",\"pages_allocated\":", stats.acp.pages_allocated,
      ",\"pages_evicted\":", stats.acp.pages_evicted,
      ",\"max_log_evicted_mass\":", std::isfinite(mass) ? absl::StrCat(mass) : std::string("null"),
      ",\"finish\":\"", NameOf(finish), "\"",
      request.trace_parent.empty()
          ? ""
          : absl::StrCat(",\"traceparent\":\"", request.trace_parent, "\""),
      "}");
}

}  // namespace

Trace::Trace(std::unique_ptr<TraceFile> file) : file_(std::move(file)), start_(SteadySeconds()) {
  const auto name_row = [this](int row, const std::string& name) {
    file_->Add(absl::StrCat("{\"ph\":\"M\",\"pid\":1,\"tid\":", row,
                            ",\"name\":\"thread_name\",\"args\":{\"name\":\"", name, "\"}}"));
  };
  name_row(kEngineRow, "engine thread");
  for (int lane = 0; lane < kLanes; ++lane) {
    name_row(kFirstLane + lane, absl::StrCat("plans in flight ", lane + 1));
  }
  file_->Flush();
}

void Trace::BeforeSubmit(const StepPlan&) {
  in_flight_.push_back({steps_++, SteadySeconds(), FreeLane()});
}

void Trace::AfterSubmit(const StepPlan& plan) {
  AddSpan(kEngineRow, "submit", in_flight_.back().begin, SteadySeconds(),
          absl::StrCat("{\"tokens\":", plan.num_tokens(), "}"));
}

void Trace::BeforeCollect() { collect_begin_ = SteadySeconds(); }

void Trace::AfterCollect(const StepPlan& plan, const StepResult& result) {
  FOX_CHECK(!in_flight_.empty());
  const InFlight step = in_flight_.front();
  in_flight_.pop_front();
  const Seconds now = SteadySeconds();
  AddSpan(kEngineRow, "collect", collect_begin_, now, "{}");
  AddSpan(kFirstLane + step.lane, absl::StrCat("step ", step.step), step.begin, now,
          StepArguments(plan, result));
  file_->Add(absl::StrCat("{\"ph\":\"C\",\"pid\":1,\"name\":\"free pages\",\"ts\":",
                          Microseconds(now), ",\"args\":{\"pages\":", result.free_pages, "}}"));
  file_->Flush();
}

void Trace::OnFirstToken(RequestId id) { first_token_[id] = SteadySeconds(); }

// Uses only the arrival and the start of the request's own statistics: in these, everything that
// happens in a step has the time of the step's beginning.
void Trace::OnFinish(const Request& request, const Finish& finish) {
  const RequestId id = request.id;
  const Seconds now = SteadySeconds();
  const Seconds arrival = finish.stats.arrival, scheduled = finish.stats.first_scheduled;
  const auto sampled = first_token_.extract(id);
  AddEdge('b', id, "request", arrival, RequestArguments(request, finish));
  AddPhase(id, "queued", arrival, scheduled > 0 ? scheduled : now);
  if (scheduled > 0) AddPhase(id, "prefill", scheduled, sampled ? sampled.mapped() : now);
  if (sampled) AddPhase(id, "decode", sampled.mapped(), now);
  AddEdge('e', id, "request", now, "{}");
  file_->Flush();
}

void Trace::AddSpan(int row, const std::string& name, Seconds begin, Seconds end,
                    const std::string& arguments) {
  file_->Add(absl::StrCat("{\"ph\":\"X\",\"pid\":1,\"tid\":", row, ",\"name\":\"", name,
                          "\",\"ts\":", Microseconds(begin),
                          ",\"dur\":", absl::StrFormat("%.3f", 1e6 * (end - begin)),
                          ",\"args\":", arguments, "}"));
}

void Trace::AddPhase(RequestId id, const char* name, Seconds begin, Seconds end) {
  AddEdge('b', id, name, begin, "{}");
  AddEdge('e', id, name, end, "{}");
}

void Trace::AddEdge(char kind, RequestId id, const char* name, Seconds time,
                    const std::string& arguments) {
  file_->Add(absl::StrCat("{\"ph\":\"", std::string(1, kind), "\",\"cat\":\"request\",\"pid\":1",
                          ",\"id\":", id, ",\"name\":\"", name, "\",\"ts\":", Microseconds(time),
                          ",\"args\":", arguments, "}"));
}

std::string Trace::Microseconds(Seconds time) const {
  return absl::StrFormat("%.3f", 1e6 * (time - start_));
}

int Trace::FreeLane() const {
  for (int lane = 0; lane + 1 < kLanes; ++lane) {
    if (std::none_of(in_flight_.begin(), in_flight_.end(),
                     [lane](const InFlight& step) { return step.lane == lane; })) {
      return lane;
    }
  }
  return kLanes - 1;
}

}  // namespace fox
