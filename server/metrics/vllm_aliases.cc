// The metrics under vLLM's names.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/paging/paged_kv.h"
#include "server/metrics/metrics_collector.h"

namespace fox {
namespace {

double Usage(const EngineStats& stats) {
  return stats.num_pages == 0
             ? 0
             : 1 - static_cast<double>(stats.free_pages) / static_cast<double>(stats.num_pages);
}

// The KV cache. A block of vLLM holds all layers and heads: num_gpu_blocks is the number of such
// blocks that the pool holds without eviction.
void AddCache(const ServerCore& core, const EngineStats& stats, MetricFamilies* out) {
  const int64_t lists = std::max<int64_t>(core.context.limits.lists_per_slot, 1);
  out->Gauge("vllm:kv_cache_usage_perc", "Used share of the KV cache, to 1.", Usage(stats));
  out->Gauge("vllm:gpu_cache_usage_perc", "Older name of the metric before.", Usage(stats));
  out->Gauge(
      "vllm:cache_config_info", "Settings of the KV cache.", 1,
      {{"block_size", absl::StrCat(kPageTokens)},
       {"num_gpu_blocks", absl::StrCat(stats.num_pages / lists)},
       {"cache_dtype", core.description.kv_dtype},
       {"enable_prefix_caching", core.context.limits.snapshot_slots > 0 ? "True" : "False"}});
  out->Counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens computed.",
               stats.drafted_tokens);
  out->Counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens accepted.",
               stats.accepted_drafts);
  out->Counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
               stats.prefix_queried_tokens);
  out->Counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.",
               stats.prefix_found_tokens);
}

}  // namespace

void AddVllmAliases(const ServerCore& core, const EngineStats& stats, const StepMetrics& steps,
                    MetricFamilies* out) {
  static const std::vector<double> first_token = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                                  0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                                  20,    40,    80,   160,  640,  2560};
  static const std::vector<double> token = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                            0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
  static const std::vector<double> request = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                              30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
  out->Gauge("vllm:num_requests_running", "Requests in the running batch.", stats.running);
  out->Gauge("vllm:num_requests_waiting", "Requests in the queue.", stats.waiting);
  AddCache(core, stats, out);
  out->Counter("vllm:num_preemptions_total", "Preemptions.", stats.preemptions);
  out->Counter("vllm:prompt_tokens_total", "Prompt tokens processed.", stats.prompt_tokens);
  out->Counter("vllm:generation_tokens_total", "Tokens generated.", stats.generated_tokens);
  const CallMetrics& calls = core.metrics();
  for (const auto& [reason, name] :
       {std::pair{v1::STOP, "stop"}, {v1::LENGTH, "length"}, {v1::ABORT, "abort"}}) {
    out->Counter("vllm:request_success_total", "Requests that ended well.",
                 calls.by_reason[static_cast<size_t>(reason)], {{"finished_reason", name}});
  }
  out->AddHistogram("vllm:iteration_tokens_total", "Tokens of an engine step.", steps.tokens);
  out->AddHistogram("vllm:time_to_first_token_seconds", "Time to the first token.",
                    calls.time_to_first_token, first_token);
  out->AddHistogram("vllm:inter_token_latency_seconds", "Time between two tokens.",
                    calls.inter_token, token);
  out->AddHistogram("vllm:time_per_output_token_seconds", "Older name of the metric before.",
                    calls.inter_token, token);
  out->AddHistogram("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.",
                    calls.end_to_end, request);
  out->AddHistogram("vllm:request_queue_time_seconds", "Time in the queue.", calls.queue, request);
  out->AddHistogram("vllm:request_prefill_time_seconds", "Time in prefill.", calls.prefill,
                    request);
  out->AddHistogram("vllm:request_decode_time_seconds", "Time in decode.", calls.decode, request);
  out->AddHistogram("vllm:request_prompt_tokens", "Prompt tokens.", calls.prompt_tokens);
  out->AddHistogram("vllm:request_generation_tokens", "Tokens generated.", calls.generation_tokens);
}

}  // namespace fox
