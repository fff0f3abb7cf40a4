// ServerCore: what all services share: the engine's thread, the tokenizer, the settings requests
// are checked against, the running calls. No gRPC in it, so tests build one around any
// StepExecutor. Read generation.h next.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/engine_thread.h"
#include "models/checkpoint/model_config.h"
#include "server/calls/access.h"
#include "server/calls/admission_pool.h"
#include "server/calls/call_budget.h"
#include "server/calls/call_info.h"
#include "server/calls/call_metrics.h"
#include "server/calls/delivery_pool.h"
#include "server/calls/grammar_queue.h"
#include "server/calls/refusal_log.h"
#include "server/calls/request_conversion.h"
#include "server/calls/stall_monitor.h"

namespace fox {

// For GetServerInfo and GetModelInfo; nothing depends on it.
struct ServerDescription {
  std::string version, git_sha;
  std::string device;  // processor or GPU and library
  std::string dtype, kv_dtype;

  // OpenAI's system_fingerprint: it differs where the same request with the same seed may bring
  // another answer.
  std::string Fingerprint() const;
};

// How much may be held for calls at once, and how long.
struct ServerLimits {
  int64_t max_calls = 4096;
  int64_t max_call_bytes = int64_t{128} << 20;
  int delivery_threads = 2;
  // Under which a trusted gateway names its client, in lower case; empty: none.
  std::string client_metadata;
  double stall_timeout = 30;  // seconds without progress of a write
  std::shared_ptr<Access> access = std::make_shared<Access>();  // not null
};

// What others may do to a call while it runs. All methods may be called from any thread.
class RunningCall {
 public:
  virtual ~RunningCall() = default;
  // Ends its sequences; Ok: they finish with ABORT.
  virtual void Cancel(const absl::Status& status) = 0;
  // Ends the call without the engine, for one that hangs.
  virtual void Abandon(const absl::Status& status) = 0;
};

// Grows with every change of proto/ that a client could notice.
inline constexpr uint32_t kProtoVersion = 8;

// All methods may be called from any thread.
class ServerCore {
 public:
  // `engine` and the context's tokenizer must outlive the core, and the engine must have stopped
  // before the core is destroyed.
  ServerCore(EngineThread& engine, ModelConfig model, ConversionContext context,
             ServerDescription description, const ServerLimits& limits = {});

  // A call of `method` (of static life) as it arrives from `peer`: without a share, and without a
  // deadline. `header`: the value of its metadata entry or header of that name (in lower case) that
  // comes at this place among those of the name, from 0; a view of null if there is none.
  using Header = std::function<absl::string_view(const std::string& name, int place)>;
  CallInfo Describe(const char* method, const std::string& peer, const Header& header);
  // The client of such a call to queues and budgets.
  uint64_t ClientOf(const std::string& peer, const Header& header);

  // Lets a generation of `bytes` on the wire in, before it is parsed: gives `call` its share of the
  // budget. A refusal costs nothing, is counted and logged. Unavailable: draining;
  // DeadlineExceeded: it has passed; InvalidArgument: the client is named twice; ResourceExhausted:
  // calls or bytes are used up, or this client has its part of a queue that is full, or longer than
  // the deadline.
  absl::Status Admit(CallInfo* call, int64_t bytes);
  // The same for a call that does not go to the engine.
  absl::Status TakeShare(CallInfo* call, int64_t bytes);
  // The same for one whose work is posted to tokenizing(); ResourceExhausted also where too much
  // waits there.
  absl::Status AdmitTokenizing(CallInfo* call, int64_t bytes);
  // Calls that Admit and TakeShare refused.
  const RefusalLog& refusals() const { return refusals_; }
  // The life of a call: BeginAdmission, Enter once its id is known, EndAdmission once the engine
  // has answered, Leave. Ids belong to a tenant (CallInfo::tenant): Enter gives false when a call
  // of this tenant with this id is running.
  void BeginAdmission() { ++admitting_; }
  bool Enter(uint64_t tenant, const std::string& request_id, std::shared_ptr<RunningCall> call);
  void EndAdmission() { --admitting_; }
  int64_t admitting() const { return admitting_; }  // between these two
  void Leave(uint64_t tenant, const std::string& request_id);
  // Ends the call of this id and of the caller's tenant, which then finishes with ABORT; for an
  // administrator, the calls of this id of all tenants. False: none is running.
  bool Abort(const CallInfo& caller, const std::string& request_id);

  const std::string& client_metadata() const { return client_metadata_; }  // ServerLimits'

  // When a refused client should come back.
  int64_t RetryAfterMs() const;

  // From now on new work is Unavailable; what runs goes on.
  void Drain() { engine.Drain(); }
  // Takes new work again. FailedPrecondition: the server is shutting down.
  absl::Status Undrain();
  // Drain, for good.
  void ShutDown();
  // Nothing runs and nothing is on its way in or out.
  bool Idle() const;
  // Ends what runs without the engine, for one that hangs.
  void AbandonAll(const absl::Status& status);
  double UptimeSeconds() const;

  // What calls hold from before their message is parsed until the library has let them go.
  CallBudget& calls() { return calls_; }
  const CallBudget& calls() const { return calls_; }
  AdmissionPool& admission() { return admission_; }    // parses and tokenizes prompts
  AdmissionPool& tokenizing() { return tokenizing_; }  // the same for fox.v1.Tokenizer
  GrammarQueue& grammars() { return grammars_; }
  // Memory of the grammars that requests use, by the client that brought them.
  const std::shared_ptr<CallBudget>& grammar_memory() { return grammar_memory_; }
  DeliveryPool& delivery() { return delivery_; }  // detokenizes and writes
  StallMonitor& stalls() { return stalls_; }
  // Of calls without a share: 64 at a time, each at most 2 s.
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
  // The one that a trusted gateway names, else the owner of the token.
  std::optional<uint64_t> VerifiedClientOf(const Header& header);

  const std::string client_metadata_;
  std::atomic<int64_t> admitting_{0};  // calls between BeginAdmission and the engine's answer
  RefusalLog refusals_;
  CallMetrics metrics_;
  mutable Mutex mutex_;
  bool shutting_down_ ABSL_GUARDED_BY(mutex_) = false;
  // By request id and tenant, from Enter to Leave.
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<RunningCall>> running_
      ABSL_GUARDED_BY(mutex_);
  CallBudget calls_;
  const std::shared_ptr<CallBudget> grammar_memory_ =
      std::make_shared<CallBudget>(/*max_calls=*/1 << 16, /*max_bytes=*/int64_t{192} << 20);
  StallMonitor stalls_, probes_{/*timeout=*/2, /*most=*/64};
  // Last, so that their tasks end before the rest goes.
  DeliveryPool delivery_;
  AdmissionPool admission_{1};
  AdmissionPool tokenizing_{1};
  GrammarQueue grammars_;
};

}  // namespace fox
