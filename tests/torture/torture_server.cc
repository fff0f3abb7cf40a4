// TortureServer: see torture_server.h.
#include "tests/torture/torture_server.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/create_channel.h"
#include "server/process/log.h"

namespace fox {
namespace {

template <typename T>
T OrExit(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "fox-torture: %s\n", std::string(value.status().message()).c_str());
  std::exit(78);
}

}  // namespace

void ReleaseWatch::BeforeSubmit(const StepPlan& plan) {
  ++plans_;
  for (const int32_t slot : plan.release_slots) {
    const auto owner = owners_.find(slot);
    if (owner == owners_.end()) continue;
    if (const auto ended = ended_.find(owner->second); ended != ended_.end()) {
      slowest_ = std::max(slowest_.load(), plans_ - ended->second);
      ended_.erase(ended);
    }
    slots_.erase(owner->second);
    owners_.erase(owner);
  }
  for (const PlannedSequence& sequence : plan.sequences) {
    owners_[sequence.slot] = sequence.id;
    slots_[sequence.id] = sequence.slot;
  }
  // What should have been released long ago counts, too.
  for (const auto& [id, when] : ended_) slowest_ = std::max(slowest_.load(), plans_ - when);
}

void ReleaseWatch::OnFinish(const Request& request, const Finish& finish) {
  static_cast<void>(finish);
  if (slots_.count(request.id) > 0) ended_[request.id] = plans_;
}

TortureServer::TortureServer(const TortureServerOptions& options) {
  ConfigureLog(options.log_level, LogFormat::kText);
  google::protobuf::SetLogHandler(nullptr);  // malformed requests are sent on purpose
  ExecutorLimits limits;
  limits.num_pages = options.num_pages;
  limits.lists_per_slot = 4;
  limits.max_num_seqs = options.max_num_seqs;
  limits.max_model_len = options.max_model_len;
  limits.max_num_batched_tokens = options.max_num_batched_tokens;
  limits.max_logit_rows = options.max_num_batched_tokens;
  limits.vocab_size = CharacterTokenizer::kVocabSize;
  executor_ = std::make_unique<RecitingExecutor>(limits);
  executor_->step_delay_us = options.step_delay_us;

  ConversionContext context;
  context.engine.max_num_queued_reqs = options.max_num_queued_reqs;
  context.engine.max_queue_seconds = 0;
  context.engine.eos_token_ids = {CharacterTokenizer::kEos};
  context.limits = limits;
  context.tokenizer = &tokenizer_;
  context.served_model_name = "reciter";
  context.max_prompt_bytes = 64 << 10;
  engine_ = std::make_unique<EngineThread>(std::make_unique<Engine>(
      context.engine, *executor_, std::vector<StepObserver*>{&watch_, &steps_}));
  ModelConfig model;
  model.vocab_size = limits.vocab_size;
  model.eos_token_ids = context.engine.eos_token_ids;
  core_ = std::make_unique<ServerCore>(
      *engine_, model, context, ServerDescription{"0.0", "", "none", "f32", "f32"}, options.limits);
  metrics_ = OrExit(HttpServer::Listen({}));
  ExposeMetrics(*core_, steps_, /*vllm_aliases=*/true, metrics_.get());
  GrpcServerOptions port;
  port.max_streams = 65536;
  grpc_ = OrExit(GrpcServer::Start(*core_, port, nullptr));
  openai_ = std::make_unique<OpenAiService>(*core_, [this] { return grpc_->serving(); });
  http_ = OrExit(HttpServer::Listen({}));
  openai_->Register(http_.get());
  http_->Start();
}

TortureServer::~TortureServer() {
  grpc_->Stop(0);
  http_->Stop(1);
}

std::shared_ptr<grpc::Channel> TortureServer::Connect() const { return ConnectTo(grpc_port()); }

Stubs TortureServer::ConnectStubs(int connections) const {
  Stubs stubs;
  for (int i = 0; i < connections; ++i) {
    stubs.push_back(std::make_unique<grpc::GenericStub>(Connect()));
  }
  return stubs;
}

bool TortureServer::WaitIdle(double seconds) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < until) {
    const EngineStats stats = engine_->stats();
    if (core_->Idle() && core_->calls().calls() == 0 && stats.running == 0 && stats.waiting == 0 &&
        stats.free_pages == stats.num_pages) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

std::shared_ptr<grpc::Channel> ConnectTo(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace fox
