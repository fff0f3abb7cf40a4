// ServerCore: the parts that all services share: the engine's thread, the tokenizer, the settings
// that requests are checked against, the pools that work for calls, the running calls. It knows
// neither gRPC nor HTTP, so tests build one around any StepExecutor. Read call.h next.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/delivery_pool.h"
#include "engine/engine_thread.h"
#include "models/checkpoint/model_config.h"
#include "server/calls/access/access.h"
#include "server/calls/access/call_info.h"
#include "server/calls/access/refusal_log.h"
#include "server/calls/auditor.h"
#include "server/calls/call_metrics.h"
#include "server/calls/conversion/request_conversion.h"
#include "server/calls/limits/admission_pool.h"
#include "server/calls/limits/call_budget.h"
#include "server/calls/limits/grammar_queue.h"
#include "server/calls/limits/stall_monitor.h"
#include "server/calls/registry.h"

namespace fox {

// Told by GetServerInfo and GetModelInfo; nothing depends on it.
struct ServerDescription {
  std::string version, git_sha;
  std::string device;  // processor or GPU and library
  std::string dtype, kv_dtype;

  // OpenAI's system_fingerprint: it differs between servers on which the same request with the same
  // seed may bring another answer.
  std::string Fingerprint() const;
};

// How much may be held for calls at once, and how long.
struct ServerLimits {
  int64_t max_calls = 4096;
  int64_t max_call_bytes = int64_t{128} << 20;
  int delivery_threads = 2;
  // False: the core has no threads. Its owner runs the pools' work, as a simulation does.
  bool has_threads = true;
  // The header or metadata entry in which a trusted gateway names its client, in lower case; empty:
  // none.
  std::string client_metadata;
  double stall_timeout = 30;  // seconds without progress of a write
  AuditOptions audit;
  std::shared_ptr<Access> access = std::make_shared<Access>();  // not null
};

// Grows with every change of proto/ that a client could notice.
inline constexpr uint32_t kProtoVersion = 9;

// All methods may be called from any thread.
class ServerCore {
 public:
  // `engine` and the context's tokenizer must outlive the core, and the engine must have stopped
  // before the core is destroyed.
  ServerCore(EngineThread& engine, ModelConfig model, ConversionContext context,
             ServerDescription description, const ServerLimits& limits = {});

  // Describes a call of `method` (of static life) as it arrives from `peer`: without a share, and
  // without a deadline.
  CallInfo Describe(const char* method, const std::string& peer, const CallerHeaders& headers);
  // The client of such a call to queues and budgets.
  uint64_t ClientOf(const std::string& peer, const CallerHeaders& headers);

  // Admits a prompt of `bytes` on the wire, before it is parsed: gives `call` its share of the
  // budget. A refusal costs nothing, is counted and logged. Unavailable: draining;
  // DeadlineExceeded: the deadline has passed; InvalidArgument: the client is named twice, or the
  // message can never be admitted; ResourceExhausted: calls or bytes are used up, or this client
  // has its part of a queue that is full, or longer than the deadline.
  absl::Status AdmitPrompt(CallInfo* call, int64_t bytes);
  // MessageTooLarge, as AdmitPrompt's, if a call can never have prompts of these bytes, the first
  // of which is admitted.
  absl::Status CheckPrompts(const CallInfo& call, const std::vector<int64_t>& bytes);
  // Admits a call that is answered at once, without the engine.
  absl::Status AdmitShort(CallInfo* call, int64_t bytes);
  // Admits a call whose work is posted to tokenizing(); ResourceExhausted also if too much waits
  // there.
  absl::Status AdmitTokenizing(CallInfo* call, int64_t bytes);
  // The calls that were refused here.
  const RefusalLog& refusals() const { return refusals_; }
  // Counts the prompts between their arrival and the engine's answer.
  void BeginAdmission() { ++admitting_; }
  void EndAdmission() { --admitting_; }
  int64_t admitting() const { return admitting_; }
  CallRegistry& registry() { return registry_; }

  const std::string& client_metadata() const { return client_metadata_; }

  // When a refused client should come back.
  int64_t RetryAfterMs() const;

  // From now on new requests are Unavailable; running ones go on.
  void Drain() { engine.Drain(); }
  // Takes new requests again. FailedPrecondition: the server is shutting down.
  absl::Status Undrain();
  // Drain, for good.
  void ShutDown();
  // True if nothing runs and nothing is on its way in or out.
  bool Idle() const;
  double UptimeSeconds() const;

  // The memory that calls hold from before their message is parsed until their last byte is
  // written.
  CallBudget& calls() { return calls_; }
  const CallBudget& calls() const { return calls_; }
  AdmissionPool& admission() { return admission_; }    // parses and tokenizes prompts
  AdmissionPool& tokenizing() { return tokenizing_; }  // tokenizes texts that are no prompts
  GrammarQueue& grammars() { return grammars_; }
  // Memory of the grammars that requests use, charged to the client that sent them.
  const std::shared_ptr<CallBudget>& grammar_memory() { return grammar_memory_; }
  DeliveryPool& delivery() { return delivery_; }  // detokenizes and writes
  Auditor& auditor() { return auditor_; }
  StallMonitor& stalls() { return stalls_; }
  // Watches calls without a share: 64 at a time, each for at most 2 s.
  StallMonitor& probes() { return probes_; }
  CallMetrics& metrics() { return metrics_; }
  const CallMetrics& metrics() const { return metrics_; }

  EngineThread& engine;
  const ModelConfig model;
  const ConversionContext context;
  const ServerDescription description;
  const std::shared_ptr<Access> access;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  absl::Status CheckQueue(const CallInfo& call) const;
  // The client that a trusted gateway names, else the owner of the token.
  std::optional<uint64_t> VerifiedClientOf(const CallerHeaders& headers);

  const std::string client_metadata_;
  std::atomic<int64_t> admitting_{0};
  RefusalLog refusals_;
  CallMetrics metrics_;
  mutable Mutex mutex_;
  bool shutting_down_ ABSL_GUARDED_BY(mutex_) = false;
  CallRegistry registry_;
  CallBudget calls_;
  const std::shared_ptr<CallBudget> grammar_memory_ =
      std::make_shared<CallBudget>(/*max_calls=*/1 << 16, /*max_bytes=*/int64_t{192} << 20);
  StallMonitor stalls_, probes_{/*timeout=*/2, /*max_watches=*/64};
  // Last, so that their tasks end before the rest goes.
  DeliveryPool delivery_;
  AdmissionPool admission_, tokenizing_;
  GrammarQueue grammars_;
  Auditor auditor_;
};

}  // namespace fox
