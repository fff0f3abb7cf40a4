// TortureServer: a whole server in this process, all its endpoints on loopback, over a
// RecitingExecutor. ReleaseWatch measures how soon the pages of what has ended are free.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "server/calls/server_core.h"
#include "server/http/http_server.h"
#include "server/http/openai_service.h"
#include "server/metrics/metrics_collector.h"
#include "server/rpc/grpc_server.h"
#include "tests/e2e/character_tokenizer.h"
#include "tests/torture/reciting_executor.h"

namespace fox {

// Counts the plans between a request's end and the release of its slot.
class ReleaseWatch final : public StepObserver {
 public:
  void BeforeSubmit(const StepPlan& plan) override;
  void OnFinish(const Request& request, const Finish& finish) override;

  // The most there were; any thread.
  int64_t slowest() const { return slowest_; }

 private:
  // The engine's thread alone.
  int64_t plans_ = 0;
  std::map<int32_t, RequestId> owners_;  // by slot
  std::map<RequestId, int32_t> slots_;   // of what holds pages
  std::map<RequestId, int64_t> ended_;   // when, of what ended and holds pages
  std::atomic<int64_t> slowest_{0};
};

struct TortureServerOptions {
  int32_t max_num_seqs = 64;
  int64_t max_model_len = 512;
  int64_t num_pages = 2048;  // half of what all sequences at full length would take
  int64_t max_num_queued_reqs = 256;
  int32_t max_num_batched_tokens = 1024;
  int step_delay_us = 0;
  LogLevel log_level = LogLevel::kError;
  ServerLimits limits;
};

using Stubs = std::vector<std::unique_ptr<grpc::GenericStub>>;

class TortureServer {
 public:
  explicit TortureServer(const TortureServerOptions& options);
  ~TortureServer();

  // A new connection.
  std::shared_ptr<grpc::Channel> Connect() const;
  // So many new connections.
  Stubs ConnectStubs(int connections) const;
  int grpc_port() const { return grpc_->port(); }
  int http_port() const { return http_->port(); }
  int metrics_port() const { return metrics_->port(); }
  EngineStats stats() const { return engine_->stats(); }
  // Calls that were refused on arrival, without the engine.
  int64_t refused_on_arrival() const { return core_->refusals().count(); }
  const ReleaseWatch& releases() const { return watch_; }
  // Waits until nothing runs, no call is open and every page is free; false after `seconds`.
  bool WaitIdle(double seconds = 10) const;
  void SetStepDelay(int microseconds) { executor_->step_delay_us = microseconds; }

 private:
  ReleaseWatch watch_;
  StepMetrics steps_;
  CharacterTokenizer tokenizer_;
  std::unique_ptr<RecitingExecutor> executor_;
  std::unique_ptr<EngineThread> engine_;
  std::unique_ptr<ServerCore> core_;
  std::unique_ptr<HttpServer> metrics_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<OpenAiService> openai_;
  std::unique_ptr<HttpServer> http_;
};

// A channel with a connection of its own to `port` on loopback.
std::shared_ptr<grpc::Channel> ConnectTo(int port);

}  // namespace fox
