// The fox_ metrics, and GET /metrics. docker/grafana/foxserve.json draws them.
#include "server/metrics/metrics_collector.h"

#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "prometheus/text_serializer.h"
#include "server/process/log.h"

namespace fox {
namespace {

void AddRequests(const EngineStats& stats, Seconds wait, MetricFamilies* out) {
  out->Gauge("fox_requests_running", "Requests in the running batch.", stats.running);
  out->Gauge("fox_requests_waiting", "Requests without a running slot.", stats.waiting);
  out->Gauge("fox_requests_paused", "Requests that wait for their readers.", stats.paused);
  out->Gauge("fox_queued_tokens", "Prompt tokens in the queue.", stats.queued_tokens);
  out->Gauge("fox_queue_wait_seconds", "Estimated wait of a new request for its start.", wait);
  out->Counter("fox_prompt_tokens_total", "Tokens of started prompts.", stats.prompt_tokens);
  out->Counter("fox_generated_tokens_total", "Tokens generated.", stats.generated_tokens);
  out->Counter("fox_drafted_tokens_total", "Draft tokens computed.", stats.drafted_tokens);
  out->Counter("fox_accepted_drafts_total", "Draft tokens accepted.", stats.accepted_drafts);
  out->Counter("fox_preemptions_total", "Requests that lost their pages.", stats.preemptions);
}

void AddPrefixCache(const ServerCore& core, const EngineStats& stats, MetricFamilies* out) {
  if (core.context.limits.snapshot_slots == 0) return;
  out->Gauge("fox_prefix_cache_snapshots", "Prefixes in the cache.", stats.snapshots);
  out->Gauge("fox_prefix_cache_bytes", "Their pages, with pages that requests share.",
             stats.snapshot_pages * core.context.limits.page_bytes);
  out->Counter("fox_prefix_cache_queried_tokens_total", "Prompt tokens looked up.",
               stats.prefix_queried_tokens);
  out->Counter("fox_prefix_cache_found_tokens_total", "Prompt tokens found, and so not computed.",
               stats.prefix_found_tokens);
  out->Counter("fox_prefix_cache_dropped_total", "Dropped prefixes.", stats.snapshots_dropped);
  const SnapshotStore* store = core.engine.prefix_store();
  if (store == nullptr) return;
  const StoreStats stored = store->stats();
  out->Gauge("fox_prefix_disk_files", "Files in --prefix-cache-dir.", stored.files);
  out->Gauge("fox_prefix_disk_bytes", "Their bytes.", stored.bytes);
  out->Counter("fox_prefix_disk_saved_total", "Prefixes written.", stored.saved);
  out->Counter("fox_prefix_disk_found_total", "Prefixes read back into the cache.",
               stats.snapshots_landed);
  out->Counter("fox_prefix_disk_read_seconds_total",
               "Time from asking for a file to its last byte, where the cache's buffers lie.",
               stored.read_seconds);
  out->Counter("fox_prefix_disk_removed_total", "Files removed for room.", stored.removed);
  out->Counter("fox_prefix_disk_lost_total",
               "Prefixes dropped unwritten, as writing was busy or they were too large.",
               stats.snapshots_lost);
  out->Counter("fox_prefix_disk_errors_total", "Failed reads and writes, with damaged files.",
               stored.errors);
}

// Pages that pruning keeps and evicts.
void AddPages(const ServerCore& core, const EngineStats& stats, MetricFamilies* out) {
  out->Gauge("fox_kv_pages", "Pages of 64 tokens of one head and layer.", stats.num_pages);
  out->Gauge("fox_kv_pages_free", "Pages without an owner.", stats.free_pages);
  out->Gauge("fox_kv_pages_live", "Pages that requests hold.", stats.kept_pages);
  out->Gauge("fox_kv_pages_unpruned", "Pages that requests would hold without eviction.",
             stats.unpruned_pages);
  out->Gauge("fox_kv_page_bytes", "Bytes of one page.", core.context.limits.page_bytes);
  out->Gauge("fox_kv_kept_ratio", "Pages that requests hold over what they would hold unpruned.",
             stats.unpruned_pages > 0
                 ? static_cast<double>(stats.kept_pages) / static_cast<double>(stats.unpruned_pages)
                 : 1);
  out->Counter("fox_kv_pages_evicted_total", "Pages given back while their requests ran.",
               stats.pages_evicted, {{"reason", "decay"}});
  out->Counter("fox_acp_blocks_total", "Blocks of attention.", stats.blocks_total);
  out->Counter("fox_acp_blocks_pruned_total", "Skipped blocks of attention.", stats.blocks_pruned);
  out->Gauge("fox_max_log_evicted_mass",
             "The certificate: largest log of the attention mass that any row of a finished "
             "request lost to eviction.",
             stats.max_log_evicted_mass);
  double tolerance = core.context.engine.log_tolerance;
  if (core.context.engine.acp == AcpMode::kOff) tolerance = kNoMass;
  out->Gauge("fox_log_tolerance", "Limit of the certificate.", tolerance);
}

void AddSteps(const ServerCore& core, const EngineStats& stats, const StepMetrics& steps,
              MetricFamilies* out) {
  out->Counter("fox_steps_total", "Steps of the engine.", stats.steps);
  out->AddHistogram("fox_step_duration_seconds", "Time of a step.", steps.prefill_seconds, {},
                    {{"phase", "prefill"}});
  out->AddHistogram("fox_step_duration_seconds", "", steps.decode_seconds, {},
                    {{"phase", "decode"}});
  out->AddHistogram("fox_step_tokens", "Tokens that a step computes.", steps.tokens);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  out->Gauge("fox_last_step_timestamp_seconds",
             "Unix time of the last turn of the engine's loop, at least ten turns a second.",
             now - core.engine.HeartbeatAge());
}

void AddCalls(const ServerCore& core, const EngineStats& stats, MetricFamilies* out) {
  const CallMetrics& calls = core.metrics();
  out->AddHistogram("fox_time_to_first_token_seconds", "From a call's arrival to its first token.",
                    calls.time_to_first_token);
  out->AddHistogram("fox_inter_token_seconds", "Time between two tokens.", calls.inter_token);
  out->AddHistogram("fox_queue_seconds", "From a call's arrival to its first step.", calls.queue);
  out->AddHistogram("fox_prefill_seconds", "From a call's first step to its first token.",
                    calls.prefill);
  out->AddHistogram("fox_decode_seconds", "From the first token to the last.", calls.decode);
  out->AddHistogram("fox_request_seconds", "From arrival to the last token.", calls.end_to_end);
  out->AddHistogram("fox_request_prompt_tokens", "Prompt tokens.", calls.prompt_tokens);
  out->AddHistogram("fox_request_generated_tokens", "Generated tokens.", calls.generation_tokens);
  out->AddHistogram("fox_request_kv_kept_ratio", "Share of a sequence's pages that it keeps.",
                    calls.kept_share);
  out->AddHistogram("fox_audit_max_tv",
                    "Audited answers: largest total variation of a token's distributions with and "
                    "without pruning.",
                    calls.audit_max_tv);
  out->Counter("fox_audits_skipped_total", "Audits without a result.", calls.audits_skipped.load());
  out->Counter("fox_audits_beyond_limit_total", "Audits beyond --audit-limit.",
               calls.audits_beyond.load());
  for (size_t code = 0; code < calls.by_code.size(); ++code) {
    out->Counter("fox_calls_ended_total", "Admitted generations, by their status.",
                 calls.by_code[code],
                 {{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
  }
  for (int reason = v1::STOP; reason < v1::FinishReason_ARRAYSIZE; ++reason) {
    out->Counter("fox_sequences_finished_total", "Sequences that ended well, by reason.",
                 calls.by_reason[static_cast<size_t>(reason)],
                 {{"reason", absl::AsciiStrToLower(
                                 v1::FinishReason_Name(static_cast<v1::FinishReason>(reason)))}});
  }
  constexpr const char* kCauses[] = {"client", "deadline", "abort", "stall", "drain"};
  static_assert(std::size(kCauses) == decltype(calls.by_cause)::size());
  for (size_t cause = 0; cause < std::size(kCauses); ++cause) {
    out->Counter("fox_calls_cancelled_total", "Generations ended early, by cause.",
                 calls.by_cause[cause], {{"cause", kCauses[cause]}});
  }
  constexpr const char* kRefusals[] = {"draining", "deadline", "queue", "budget", "credentials"};
  static_assert(std::size(kRefusals) == kRefusalReasons);
  for (size_t reason = 0; reason < std::size(kRefusals); ++reason) {
    const auto which = static_cast<RefusalReason>(reason);
    int64_t later = which == RefusalReason::kQueue ? stats.rejected : 0;  // refused by the engine
    if (which == RefusalReason::kCredentials) later = core.access->refused();
    out->Counter("fox_admission_rejections_total", "Calls refused before they started, by reason.",
                 core.refusals().count(which) + later, {{"reason", kRefusals[reason]}});
  }
}

void AddServer(const ServerCore& core, MetricFamilies* out) {
  out->Gauge("fox_calls", "Calls from their arrival to their last write.", core.calls().calls());
  out->Gauge("fox_calls_max", "Limit of calls.", core.calls().max_calls());
  out->Gauge("fox_call_bytes", "Memory held for calls.", core.calls().bytes());
  out->Gauge("fox_call_bytes_max", "Limit of memory held for calls.", core.calls().max_bytes());
  out->Counter("fox_log_lines_dropped_total", "Log lines dropped, as nothing read them.",
               DroppedLogLines());
  out->Gauge("fox_draining", "1 while new requests are refused, else 0.",
             core.engine.draining() ? 1 : 0);
  out->Gauge("fox_build_info", "Always 1; version, model and device are labels.", 1,
             {{"version", core.description.version},
              {"git_sha", core.description.git_sha},
              {"model", core.context.served_model_name},
              {"device", core.description.device},
              {"dtype", core.description.dtype}});
}

}  // namespace

std::vector<prometheus::MetricFamily> CollectMetrics(const ServerCore& core,
                                                     const StepMetrics& steps, bool vllm_aliases) {
  const EngineStats stats = core.engine.stats();
  MetricFamilies out;
  AddRequests(stats, core.engine.QueueSeconds(), &out);
  AddPages(core, stats, &out);
  AddPrefixCache(core, stats, &out);
  AddSteps(core, stats, steps, &out);
  AddCalls(core, stats, &out);
  AddServer(core, &out);
  AddProcessMetrics(&out);
  std::vector<prometheus::MetricFamily> families = out.Take();
  if (vllm_aliases) {
    MetricFamilies aliases({{"model_name", core.context.served_model_name}, {"engine", "0"}});
    AddVllmAliases(core, stats, steps, &aliases);
    for (prometheus::MetricFamily& family : aliases.Take()) families.push_back(std::move(family));
  }
  return families;
}

void ExposeMetrics(const ServerCore& core, const StepMetrics& steps, bool vllm_aliases,
                   HttpServer* server) {
  const auto scrape = [&core, &steps, vllm_aliases](const std::shared_ptr<HttpExchange>& exchange) {
    HttpAnswer answer;
    answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer.body = prometheus::TextSerializer().Serialize(CollectMetrics(core, steps, vllm_aliases));
    exchange->Answer(std::move(answer));
  };
  server->routes().Handle("GET", "/metrics", scrape, Privilege::kPublic);
  server->Start();
}

}  // namespace fox
