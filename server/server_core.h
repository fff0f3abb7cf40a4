// ServerCore: what all services share: the engine's thread, the tokenizer, the settings requests
// are checked against, the running calls. No gRPC in it, so tests build one around any
// StepExecutor. Read generation.h next.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/engine_thread.h"
#include "models/model_config.h"
#include "server/request_conversion.h"
#include "server/request_registry.h"
#include "server/worker_pool.h"

namespace fox {

// For GetServerInfo and GetModelInfo; nothing depends on it.
struct ServerDescription {
  std::string version, git_sha;
  std::string device;  // processor or GPU and library
  std::string dtype, kv_dtype;
};

// Grows with every change of proto/ that a client could notice.
inline constexpr uint32_t kProtoVersion = 1;

// Constant after construction but for the counters; any thread may use it.
class ServerCore {
 public:
  // `engine` and the context's tokenizer must outlive the core, and the engine must have stopped
  // before the core is destroyed.
  ServerCore(EngineThread& engine, ModelConfig model, ConversionContext context,
             ServerDescription description);

  // Whether new work may come in. Unavailable: draining; ResourceExhausted: the queue is full.
  // Costs nothing, so a refused request costs nothing.
  absl::Status CheckAdmission() const;
  // When a refused client should come back, from how long requests have taken lately.
  int64_t RetryAfterMs() const;
  void RecordDuration(double seconds);

  // From now on new work is Unavailable; what runs goes on.
  void Drain() { engine.Drain(); }
  // Nothing runs and nothing is on its way in or out.
  bool Idle() const { return registry.size() == 0 && engine.idle(); }
  double UptimeSeconds() const;

  EngineThread& engine;
  const ModelConfig model;
  const ConversionContext context;
  const ServerDescription description;
  RequestRegistry registry;
  std::atomic<int64_t> admitting{0};  // calls between arrival and the engine's queue

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<double> mean_seconds_{1.0};  // exponential mean over finished calls

 public:
  // Last, so that their tasks end before the rest goes.
  WorkerPool delivery{1};     // detokenizes and writes
  WorkerPool submission{16};  // waits for the engine's verdict, at most one step each
  WorkerPool admission{2};    // tokenizes
};

}  // namespace fox
