// ServerCore: what all services share: the engine's thread, the tokenizer, the settings requests
// are checked against, the running calls. No gRPC in it, so tests build one around any
// StepExecutor. Read generation.h next.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/engine_thread.h"
#include "models/model_config.h"
#include "server/call_budget.h"
#include "server/conversion_context.h"
#include "server/delivery_pool.h"
#include "server/request_registry.h"
#include "server/stall_monitor.h"
#include "server/worker_pool.h"

namespace fox {

// For GetServerInfo and GetModelInfo; nothing depends on it.
struct ServerDescription {
  std::string version, git_sha;
  std::string device;  // processor or GPU and library
  std::string dtype, kv_dtype;
};

// How much may be held for calls at once, and how long.
struct ServerLimits {
  int64_t max_calls = 4096;
  int64_t max_call_bytes = int64_t{256} << 20;
  int delivery_threads = 2;
  double stall_timeout = 30;  // seconds without progress of a write
};

// Grows with every change of proto/ that a client could notice.
inline constexpr uint32_t kProtoVersion = 1;

// All methods may be called from any thread.
class ServerCore {
 public:
  // `engine` and the context's tokenizer must outlive the core, and the engine must have stopped
  // before the core is destroyed.
  ServerCore(EngineThread& engine, ModelConfig model, ConversionContext context,
             ServerDescription description, const ServerLimits& limits = {});

  // Whether new work may come in. Unavailable: draining; ResourceExhausted: the queue is full.
  // Costs nothing, so a refused request costs nothing.
  absl::Status CheckAdmission() const;
  // The life of a call: BeginAdmission, Enter once its id is known, EndAdmission once the engine
  // has answered, Leave. Enter gives false when a call with this id is running.
  void BeginAdmission() { ++admitting_; }
  bool Enter(const std::string& request_id, std::shared_ptr<Generation> call);
  void EndAdmission() { --admitting_; }
  void Leave(const std::string& request_id) { registry_.Remove(request_id); }
  // The running call of this id, or null.
  std::shared_ptr<Generation> Find(const std::string& request_id) const;

  // When a refused client should come back, from how long requests have taken lately.
  int64_t RetryAfterMs() const;
  void RecordDuration(double seconds);

  // From now on new work is Unavailable; what runs goes on.
  void Drain() { engine.Drain(); }
  // Nothing runs and nothing is on its way in or out.
  bool Idle() const {
    return calls_.calls() == 0 && registry_.size() == 0 && admitting_ == 0 && engine.idle();
  }
  // Ends what runs without the engine, for one that hangs.
  void AbandonAll(const absl::Status& status);
  double UptimeSeconds() const;

  // What calls hold from before their message is parsed until the library has let them go.
  CallBudget& calls() { return calls_; }
  WorkerPool& admission() { return admission_; }  // tokenizes
  DeliveryPool& delivery() { return delivery_; }  // detokenizes and writes
  StallMonitor& stalls() { return stalls_; }

  EngineThread& engine;
  const ModelConfig model;
  const ConversionContext context;
  const ServerDescription description;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<double> mean_seconds_{1.0};  // exponential mean over finished calls
  std::atomic<int64_t> admitting_{0};      // calls between Enter and the engine's answer
  CallBudget calls_;
  RequestRegistry registry_;
  StallMonitor stalls_;
  // Last, so that their tasks end before the rest goes.
  DeliveryPool delivery_;
  WorkerPool admission_{2};
};

}  // namespace fox
