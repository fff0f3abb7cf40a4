// CompletionFormat: see completion_format.h.
#include "server/http/openai/completion_format.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "kernels/core/check.h"
#include "kernels/paging/acp.h"
#include "kernels/paging/paged_kv.h"
#include "server/calls/sequence_events.h"
#include "server/http/port/http_error.h"
#include "server/process/random_id.h"

namespace fox {

// Clients in Python split a stream with str.splitlines(), for which these end a line, too: U+0085,
// U+2028 and U+2029. JSON escapes the others itself.
std::string ServerSentEvent(const std::string& data, const std::string& name) {
  const std::string line = absl::StrReplaceAll(
      data, {{"\xc2\x85", "\\u0085"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}});
  return absl::StrCat(name.empty() ? "" : absl::StrCat("event: ", name, "\n"), "data: ", line,
                      "\n\n");
}

// Adds the lost mass of another sequence to `lost`.
void AddLost(const v1::LostMass& other, v1::LostMass* lost) {
  if (lost->ByteSizeLong() == 0) {
    *lost = other;
    return;
  }
  lost->set_max_log(std::max(lost->max_log(), other.max_log()));
  lost->set_log_sum(RoundedUp(LogAddExp(lost->log_sum(), other.log_sum())));
  if (!other.has_max_log_shift()) return;
  const bool first = !lost->has_max_log_shift();
  const double sum = first ? kNoMass : lost->log_sum_shift();
  lost->set_max_log_shift(first ? other.max_log_shift()
                                : std::max(lost->max_log_shift(), other.max_log_shift()));
  lost->set_log_sum_shift(RoundedUp(LogAddExp(sum, other.log_sum_shift())));
}

// The fields of both LostMass, as far as they are set.
std::string LostObjects(const v1::AcpStats& acp) {
  std::string text;
  const auto add = [&text](const char* name, const v1::LostMass& lost) {
    absl::StrAppend(&text, ",\"", name, "\":{\"max_log\":", JsonBound(lost.max_log()),
                    ",\"log_sum\":", JsonBound(lost.log_sum()));
    if (lost.has_max_log_shift()) {
      absl::StrAppend(&text, ",\"max_log_shift\":", JsonBound(lost.max_log_shift()),
                      ",\"log_sum_shift\":", JsonBound(lost.log_sum_shift()));
    }
    text += "}";
  };
  if (acp.has_prompt_lost()) add("prompt_lost", acp.prompt_lost());
  if (acp.has_answer_lost()) add("answer_lost", acp.answer_lost());
  return text;
}

// The audits of a call's sequences as one; empty: none was asked for.
std::string AuditObject(const std::vector<EndedSequence>& sequences) {
  v1::Audit all;
  bool any = false;
  for (const EndedSequence& sequence : sequences) {
    if (!sequence.acp.has_audit()) continue;
    const v1::Audit& audit = sequence.acp.audit();
    any = true;
    if (!audit.skipped().empty()) all.set_skipped(audit.skipped());
    all.set_tokens(all.tokens() + audit.tokens());
    all.set_max_tv(std::max(all.max_tv(), audit.max_tv()));
    all.set_sum_tv(all.sum_tv() + audit.sum_tv());
    all.set_sum_kl(all.sum_kl() + audit.sum_kl());
  }
  if (!any) return "";
  if (!all.skipped().empty()) {
    return absl::StrCat(",\"audit\":{\"skipped\":", JsonString(all.skipped()), "}");
  }
  return absl::StrCat(
      ",\"audit\":{\"tokens\":", all.tokens(), ",\"max_tv\":", JsonNumber(all.max_tv()),
      ",\"sum_tv\":", JsonNumber(all.sum_tv()), ",\"sum_kl\":", JsonNumber(all.sum_kl()), "}");
}

std::string FoxObject(const std::vector<EndedSequence>& sequences, int64_t cached_tokens,
                      const std::vector<std::string>& relaxed, const ConversionContext& context) {
  float mass = -std::numeric_limits<float>::infinity(), tolerance = mass;
  std::optional<float> bound;
  uint64_t held = 0, unpruned = 0;
  v1::AcpStats lost;
  for (const EndedSequence& sequence : sequences) {
    const v1::AcpStats& acp = sequence.acp;
    mass = std::max(mass, acp.max_log_evicted_mass());
    tolerance = std::max(tolerance, acp.log_tolerance());
    if (acp.has_bound_log_prob()) bound = std::max(bound.value_or(0), acp.bound_log_prob());
    if (acp.has_prompt_lost()) AddLost(acp.prompt_lost(), lost.mutable_prompt_lost());
    if (acp.has_answer_lost()) AddLost(acp.answer_lost(), lost.mutable_answer_lost());
    // A sequence that was preempted has taken pages more than once: the peak and the tokens bound
    // the pages that it had at its end.
    const auto all =
        std::min(acp.pages_allocated(),
                 static_cast<uint64_t>(PagesFor(sequence.tokens) * context.limits.lists_per_slot));
    held += std::min({all, acp.peak_pages(), acp.pages_allocated() - acp.pages_evicted()});
    unpruned += all;
  }
  const auto page_bytes = static_cast<uint64_t>(context.limits.page_bytes);
  const auto add_text = [](std::string* out, const std::string& text) { *out += JsonString(text); };
  return absl::StrCat(
      ",\"fox\":{\"max_log_evicted_mass\":", JsonBound(mass),
      ",\"log_tolerance\":", JsonNumber(tolerance), LostObjects(lost),
      bound ? absl::StrCat(",\"bound_log_prob\":", JsonBound(*bound)) : "", AuditObject(sequences),
      ",\"kv_bytes\":", held * page_bytes, ",\"kv_bytes_unpruned\":", unpruned * page_bytes,
      ",\"cached_tokens\":", cached_tokens,
      relaxed.empty() ? ""
                      : absl::StrCat(",\"relaxed\":[", absl::StrJoin(relaxed, ",", add_text), "]"),
      "}");
}

std::string WindowsEvent(const v1::Windows& windows, size_t choice) {
  const v1::AcpStats& acp = windows.acp();
  return absl::StrCat(
      "data: {\"object\":\"fox.windows\",\"index\":", choice, ",\"tokens\":", windows.tokens(),
      ",\"layers\":", windows.layers(), ",\"kv_heads\":", windows.kv_heads(),
      ",\"page_size\":", windows.page_size(), ",\"page_bytes\":", windows.page_bytes(),
      ",\"first_page\":[", absl::StrJoin(windows.first_page(), ","),
      "],\"acp\":{\"blocks_total\":", acp.blocks_total(),
      ",\"blocks_pruned\":", acp.blocks_pruned(), ",\"pages_allocated\":", acp.pages_allocated(),
      ",\"pages_evicted\":", acp.pages_evicted(), ",\"peak_pages\":", acp.peak_pages(),
      ",\"max_log_evicted_mass\":", JsonBound(acp.max_log_evicted_mass()),
      ",\"log_tolerance\":", JsonNumber(acp.log_tolerance()), LostObjects(acp),
      acp.has_bound_log_prob()
          ? absl::StrCat(",\"bound_log_prob\":", JsonBound(acp.bound_log_prob()))
          : "",
      "}}\n\n");
}

CompletionFormat::CompletionFormat(const HttpApi& api, const ConversionContext& context,
                                   std::string fingerprint, HttpRequest* sent, HttpAnswer* head)
    : api_(api),
      context_(context),
      fingerprint_(std::move(fingerprint)),
      sent_id_(sent->Header("x-request-id")),
      head_(head),
      body_(std::move(sent->body)) {}

absl::StatusOr<CallOutline> CompletionFormat::ParseMessage() {
  const absl::StatusOr<std::string> name = CheckRequestId(sent_id_);
  if (!name.ok()) return name.status();
  head_->headers = {{"X-Request-Id", *name}, {"Request-Id", *name}};  // Anthropic's name
  // A service passes the header on with all calls that it makes for one request of its own, so
  // calls may share it. The registry, the log and clients know a call and its answer by an id of
  // its own.
  id_ = sent_id_.empty() ? *name : absl::StrCat(*name, "-", RandomUuid());
  const auto bytes = static_cast<int64_t>(body_.size());
  absl::StatusOr<CompletionRequest> request = api_.parse(std::exchange(body_, {}), context_);
  if (!request.ok()) return request.status();
  request_ = *std::move(request);
  writer_ = api_.make_writer(request_, context_, fingerprint_, absl::StrCat(api_.id_prefix, id_),
                             std::time(nullptr));
  if (request_.stream) {
    // Without a charset some clients take text for Latin-1; nginx would hold events back.
    head_->content_type = "text/event-stream; charset=utf-8";
    head_->headers.emplace_back("Cache-Control", "no-cache");
    head_->headers.emplace_back("X-Accel-Buffering", "no");
  }
  CallOutline outline;
  outline.stream = request_.stream;
  for (const v1::GenerateRequest& prompt : request_.prompts) {
    outline.prompt_bytes.push_back(
        outline.prompt_bytes.empty() ? bytes : static_cast<int64_t>(prompt.ByteSizeLong()));
  }
  return outline;
}

absl::StatusOr<GenerationSpec> CompletionFormat::ConvertPrompt(size_t prompt) {
  absl::StatusOr<GenerationSpec> spec = Convert(request_, prompt, context_);
  if (!spec.ok()) return spec.status();
  spec->request_id = request_.prompts.size() == 1 ? id_ : absl::StrCat(id_, "-", prompt);
  return spec;
}

void CompletionFormat::AddEvent(CallEvent event) {
  FOX_CHECK(writer_ != nullptr);
  if (request_.stream && event.tokens > 0) tokens_.emplace_back(event.sequence, event.tokens);
  if (event.delta.has_windows()) {
    const v1::Windows& windows = event.delta.windows();
    const size_t choice = event.prompt * static_cast<size_t>(request_.n) + windows.index();
    std::string& newest = windows_[choice];
    held_bytes_ -= static_cast<int64_t>(newest.size());
    newest = WindowsEvent(windows, choice);
    held_bytes_ += static_cast<int64_t>(newest.size());
    return;
  }
  held_bytes_ += writer_->AddEvent(event.prompt, event.delta);
  if (!request_.stream || event.delta.has_prompt()) return;
  const std::string chunk = writer_->TakeChunk(event.prompt, event.delta);
  held_bytes_ += static_cast<int64_t>(chunk.size());
  chunks_ += chunk;
}

Format::Output CompletionFormat::TakeOutput(bool last) {
  FOX_CHECK(writer_ != nullptr);
  if (!request_.stream) {
    FOX_CHECK(last);
    held_bytes_ = 0;
    return {writer_->TakeBody(), {}};
  }
  Output output;
  for (const auto& [choice, event] : windows_) output.bytes += event;
  windows_.clear();
  output.bytes += std::exchange(chunks_, {});  // the end of the last choice comes last
  held_bytes_ -= static_cast<int64_t>(output.bytes.size());
  FOX_CHECK(held_bytes_ >= 0);
  if (std::exchange(keep_alive_, false) && output.bytes.empty()) output.bytes = api_.keep_alive;
  if (last) output.bytes += writer_->LastChunks();
  output.tokens = std::exchange(tokens_, {});
  return output;
}

void CompletionFormat::DropContents() {
  body_ = {};
  chunks_ = {};
  windows_.clear();
  keep_alive_ = false;
  if (writer_ != nullptr) writer_->DropContents();
  held_bytes_ = 0;
}

std::string CompletionFormat::EncodeFailure(const absl::Status& status,
                                            bool stream_has_begun) const {
  if (!stream_has_begun) return api_.error_body(status);
  FOX_CHECK(writer_ != nullptr);
  return writer_->EncodeFailure(status);
}

}  // namespace fox
