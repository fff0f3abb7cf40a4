// InfoService: see services.h.
#include <algorithm>

#include "kernels/paging/paged_kv.h"
#include "server/calls/conversion/request_conversion.h"
#include "server/rpc/services.h"

namespace fox {
namespace {

uint32_t U32(int64_t value) { return static_cast<uint32_t>(value); }
uint64_t U64(int64_t value) { return static_cast<uint64_t>(value); }

v1::ServerInfo DescribeServer(const ServerCore& core) {
  const ExecutorLimits& limits = core.context.limits;
  const EngineOptions& engine = core.context.engine;
  v1::ServerInfo out;
  out.set_version(core.description.version);
  out.set_git_sha(core.description.git_sha);
  out.set_proto_version(kProtoVersion);
  out.set_device(core.description.device);
  out.set_dtype(core.description.dtype);
  out.set_kv_dtype(core.description.kv_dtype);
  out.set_page_size(kPageTokens);
  out.set_num_pages(U64(limits.num_pages));
  out.set_max_model_len(U64(limits.max_model_len));
  out.set_max_num_seqs(U32(limits.max_num_seqs));
  out.set_max_num_batched_tokens(U64(limits.max_num_batched_tokens));
  out.set_acp_mode(ToWire(engine.acp));
  out.set_log_tolerance(engine.log_tolerance);
  for (const int32_t size : limits.graph_sizes) out.add_captured_graph_sizes(U32(size));
  out.set_uptime_s(core.UptimeSeconds());
  out.set_max_num_queued_requests(U64(engine.max_num_queued_reqs));
  out.set_max_num_queued_tokens(U64(engine.max_num_queued_tokens));
  out.set_max_logprobs(U32(engine.max_logprobs));
  out.set_scheduling_policy(engine.priority_scheduling ? "priority" : "fcfs");
  out.set_max_prompt_bytes(core.context.max_prompt_bytes);
  out.set_draining(core.engine.draining());
  return out;
}

v1::ModelInfo DescribeModel(const ServerCore& core) {
  const ModelConfig& model = core.model;
  v1::ModelInfo out;
  out.set_served_model_name(core.context.served_model_name);
  constexpr const char* kLayouts[] = {"official", "fla", "transformers"};
  out.set_layout(kLayouts[static_cast<size_t>(model.layout)]);
  out.set_vocab_size(U32(model.vocab_size));
  out.set_hidden_size(U32(model.hidden_size));
  out.set_intermediate_size(U32(model.intermediate_size));
  out.set_num_layers(U32(model.num_layers));
  out.set_num_heads(U32(model.num_heads));
  out.set_num_kv_heads(U32(model.num_kv_heads));
  out.set_head_dim(U32(model.head_dim));
  out.set_max_context_length(U64(core.context.limits.max_model_len));
  if (model.bos_token_id.has_value()) out.set_bos_token_id(U32(*model.bos_token_id));
  for (int32_t id : model.eos_token_ids) out.add_eos_token_ids(U32(id));
  for (int32_t id : core.context.defaults.eos_token_ids) {
    const auto& known = model.eos_token_ids;
    if (std::find(known.begin(), known.end(), id) == known.end()) out.add_eos_token_ids(U32(id));
  }
  if (model.pad_token_id.has_value()) out.set_pad_token_id(U32(*model.pad_token_id));
  out.set_qk_norm(model.qk_norm);
  out.set_use_rope(model.use_rope);
  out.set_forget_gates(model.forget_gate != ForgetGate::kNone);
  out.set_attention_sink(model.attention_sink);
  out.set_qk_norm_cap(model.qk_norm_cap);
  if (core.context.tokenizer != nullptr) out.set_tokenizer(core.context.tokenizer->info().kind);
  out.set_default_sampling_params_json(ToJson(core.context.defaults));
  out.set_chat(core.context.chat != nullptr);
  return out;
}

v1::Load DescribeLoad(ServerCore& core, bool totals) {
  const EngineStats stats = core.engine.stats();
  v1::Load out;
  out.set_running(U64(stats.running));
  out.set_waiting(U64(stats.waiting));
  out.set_queue_s(core.engine.QueueSeconds());
  out.set_partial(!totals);
  if (!totals) return out;
  out.set_paused(U64(stats.paused));
  out.set_queued_tokens(U64(stats.queued_tokens));
  out.set_free_pages(U64(stats.free_pages));
  out.set_num_pages(U64(stats.num_pages));
  if (stats.num_pages > 0) {
    out.set_page_usage(1.0 - static_cast<double>(stats.free_pages) /
                                 static_cast<double>(stats.num_pages));
  }
  out.set_steps(U64(stats.steps));
  out.set_prompt_tokens(U64(stats.prompt_tokens));
  out.set_generated_tokens(U64(stats.generated_tokens));
  out.set_preemptions(U64(stats.preemptions));
  out.set_pages_evicted(U64(stats.pages_evicted));
  out.set_requests_finished(U64(stats.finished));
  out.set_requests_failed(U64(stats.failed));
  out.set_requests_cancelled(U64(stats.cancelled));
  out.set_requests_rejected(U64(stats.rejected + core.refusals().count()));
  out.set_requests_expired(U64(stats.expired));
  out.set_requests_aborted(U64(stats.aborted));
  out.set_calls(U64(core.calls().calls()));
  out.set_call_bytes(U64(core.calls().bytes()));
  out.set_unpruned_pages(U64(stats.unpruned_pages));
  out.set_kept_pages(U64(stats.kept_pages));
  out.set_snapshots(U64(stats.snapshots));
  out.set_snapshot_pages(U64(stats.snapshot_pages));
  out.set_prefix_queried_tokens(U64(stats.prefix_queried_tokens));
  out.set_prefix_found_tokens(U64(stats.prefix_found_tokens));
  out.set_page_bytes(U64(core.context.limits.page_bytes));
  out.set_max_log_evicted_mass(stats.max_log_evicted_mass);
  out.set_heartbeat_age_s(core.engine.HeartbeatAge());
  return out;
}

}  // namespace

InfoService::InfoService(ServerCore& core, bool all_administer) : RawService(core) {
  ServeShort<v1::GetServerInfoRequest, v1::ServerInfo>(
      "GetServerInfo", [&core](const auto&, const CallInfo&) { return DescribeServer(core); });
  ServeShort<v1::GetModelInfoRequest, v1::ModelInfo>(
      "GetModelInfo",
      [&core](const v1::GetModelInfoRequest& request,
              const CallInfo&) -> absl::StatusOr<v1::ModelInfo> {
        absl::Status status = CheckModelName(request.model(), core.context);
        if (!status.ok()) return status;
        return DescribeModel(core);
      });
  ServeShort<v1::GetLoadRequest, v1::Load>(
      "GetLoad", [&core, all_administer](const auto&, const CallInfo& call) {
        return DescribeLoad(core, call.administrator || (all_administer && call.tenant == 0));
      });
}

}  // namespace fox
