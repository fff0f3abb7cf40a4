// VllmService: see vllm_service.h.
#include "server/rpc/vllm_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/archive_reactor.h"
#include "server/rpc/info_service.h"
#include "server/rpc/vllm_call.h"

namespace fox {
namespace {

constexpr int kMaxAbortIds = 1024;

int32_t I32(uint64_t value) { return static_cast<int32_t>(std::min<uint64_t>(value, INT32_MAX)); }

absl::StatusOr<GenerationSpec> ConvertBytes(grpc::ByteBuffer* bytes, VllmCall* call) {
  vllm_wire::GenerateRequest message;
  const absl::Status status = ParseMessage(*bytes, &message);
  bytes->Clear();
  if (!status.ok()) return status;
  return call->Convert(std::move(message));
}

absl::StatusOr<vllm_wire::AbortResponse> AbortAll(const vllm_wire::AbortRequest& request,
                                                  const CallInfo& call, ServerCore& core) {
  if (request.request_ids_size() > kMaxAbortIds) {
    return absl::InvalidArgumentError("request_ids: at most 1024 ids");
  }
  for (const std::string& id : request.request_ids()) core.Abort(call, id);
  return vllm_wire::AbortResponse();
}

vllm_wire::HealthCheckResponse HealthOf(const ServerCore& core, bool serving) {
  vllm_wire::HealthCheckResponse out;
  out.set_healthy(serving);
  out.set_message(serving ? "serving" : core.engine.draining() ? "draining" : "not serving");
  return out;
}

vllm_wire::GetModelInfoResponse ToGateway(const v1::ModelInfo& model) {
  vllm_wire::GetModelInfoResponse out;
  // Neither a folder nor, as it begins with a slash, the name of a repository on a hub.
  out.set_model_path(absl::StrCat("/foxserve/", model.served_model_name()));
  out.set_tokenizer_path(out.model_path());
  out.set_is_generation(true);
  out.set_max_context_length(static_cast<uint32_t>(model.max_context_length()));
  out.set_max_req_input_len(I32(model.max_context_length() - 1));
  out.set_vocab_size(model.vocab_size());
  out.set_served_model_name(model.served_model_name());
  out.set_model_type("forgetting_transformer");
  out.add_architectures("ForgettingTransformerForCausalLM");
  for (uint32_t id : model.eos_token_ids()) out.add_eos_token_ids(I32(id));
  out.set_bos_token_id(I32(model.bos_token_id()));
  out.set_pad_token_id(I32(model.pad_token_id()));
  out.set_default_sampling_params_json(model.default_sampling_params_json());
  return out;
}

vllm_wire::GetServerInfoResponse ToGateway(const v1::ServerInfo& server, const v1::Load& load) {
  vllm_wire::GetServerInfoResponse out;
  out.set_active_requests(static_cast<uint32_t>(load.running() + load.waiting()));
  out.set_uptime_seconds(server.uptime_s());
  out.set_server_type("foxserve");
  out.set_data_parallel_size(1);
  out.set_kv_cache_dtype(server.kv_dtype());
  out.set_block_size(I32(server.page_size()));
  out.set_attention_backend("fox");
  out.set_model_dtype(server.dtype());
  out.set_max_num_seqs(I32(server.max_num_seqs()));
  return out;
}

vllm_wire::GetLoadsResponse ToGateway(const v1::Load& load, const ServerCore& core) {
  vllm_wire::GetLoadsResponse out;
  out.set_version(core.description.version);
  out.set_dp_rank_count(1);
  vllm_wire::SchedulerLoad* scheduler = out.add_loads();
  scheduler->set_num_running_reqs(I32(load.running()));
  scheduler->set_num_waiting_reqs(I32(load.waiting()));
  scheduler->set_num_total_reqs(I32(load.running() + load.waiting()));
  scheduler->set_token_usage(load.page_usage());
  scheduler->set_max_running_requests(core.context.limits.max_num_seqs);
  scheduler->set_num_waiting_uncached_tokens(I32(load.queued_tokens()));
  return out;
}

// Makes the archive when the first gateway asks, and keeps it.
class TokenizerStore {
 public:
  explicit TokenizerStore(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  absl::StatusOr<ArchiveReactor::Archive> Get() {
    const MutexLock lock(mutex_);
    if (!made_.has_value()) {
      absl::StatusOr<TokenizerArchive> archive = MakeTokenizerArchive(tokenizer_);
      if (archive.ok()) {
        made_ = std::make_shared<const TokenizerArchive>(*std::move(archive));
      } else {
        made_ = archive.status();
      }
    }
    return *made_;
  }

 private:
  const Tokenizer* const tokenizer_;
  Mutex mutex_;
  std::optional<absl::StatusOr<ArchiveReactor::Archive>> made_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

VllmService::VllmService(ServerCore& core, std::function<bool()> serving) : RawService(core) {
  ServeGenerate();
  ServeGetTokenizer();
  // Without a share of the budget: a server that is full is as healthy as before.
  ServeShort<vllm_wire::HealthCheckRequest, vllm_wire::HealthCheckResponse>(
      "VllmEngine.HealthCheck",
      [&core, serving = std::move(serving)](const auto&, const CallInfo&) {
        return HealthOf(core, serving());
      },
      /*takes_share=*/false);
  ServeShort<vllm_wire::AbortRequest, vllm_wire::AbortResponse>(
      "VllmEngine.Abort",
      [&core](const auto& request, const CallInfo& call) { return AbortAll(request, call, core); });
  ServeShort<vllm_wire::GetModelInfoRequest, vllm_wire::GetModelInfoResponse>(
      "VllmEngine.GetModelInfo",
      [&core](const auto&, const CallInfo&) { return ToGateway(DescribeModel(core)); });
  ServeShort<vllm_wire::GetServerInfoRequest, vllm_wire::GetServerInfoResponse>(
      "VllmEngine.GetServerInfo", [&core](const auto&, const CallInfo&) {
        return ToGateway(DescribeServer(core), DescribeLoad(core));
      });
  ServeShort<vllm_wire::GetLoadsRequest, vllm_wire::GetLoadsResponse>(
      "VllmEngine.GetLoads",
      [&core](const auto&, const CallInfo&) { return ToGateway(DescribeLoad(core), core); });
}

void VllmService::ServeGenerate() {
  Serve("VllmEngine.Generate", [this](grpc::CallbackServerContext* context, const Bytes* request) {
    const auto call = std::make_shared<VllmCall>(core_.context);  // admission may outlive the rest
    const auto convert = [call](Bytes* bytes, const ConversionContext&) {
      return ConvertBytes(bytes, call.get());
    };
    const auto encode = [call](GenerationReactor::Events events, Bytes* out) {
      vllm_wire::GenerateResponse response;
      if (!call->Answer(std::move(events.front()), &response)) return false;
      SerializeMessage(response, out);
      return true;
    };
    GenerationReactor::Method method = {"VllmEngine.Generate", GenerationReactor::Kind::kStream,
                                        convert, encode, VllmCall::EndOf};
    return GenerationReactor::Start(core_, std::move(method), context, request);
  });
}

void VllmService::ServeGetTokenizer() {
  const auto store = std::make_shared<TokenizerStore>(core_.context.tokenizer);
  const auto handler = [this, store](grpc::CallbackServerContext* context, const Bytes* request) {
    CallInfo info = DescribeCall("VllmEngine.GetTokenizer", *context, core_);
    const absl::Status status = core_.TakeShare(&info, static_cast<int64_t>(request->Length()));
    const uint64_t client = info.client;
    const auto reactor = std::static_pointer_cast<ArchiveReactor>(
        (new ArchiveReactor(core_, context, std::move(info)))->self());
    if (status.ok()) {
      core_.tokenizing().Post(client, 0, [reactor, store] { reactor->Send(store->Get()); });
    } else {
      reactor->Answer(status);
    }
    return reactor.get();
  };
  Serve("VllmEngine.GetTokenizer", handler);
}

}  // namespace fox
