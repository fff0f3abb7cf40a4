// ServerCore: descriptions of calls, and their admission. See server_core.h.
#include "server/calls/server_core.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/store/digest.h"
#include "server/process/peer_address.h"

namespace fox {
namespace {

constexpr int64_t kHeldPerByte = 4;  // for the message, parsed, and as tokens
constexpr size_t kMaxTextsQueued = 256;

// The reason for a status of CheckQueue.
RefusalReason ReasonOf(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return RefusalReason::kDraining;
  if (absl::IsDeadlineExceeded(status)) return RefusalReason::kDeadline;
  return RefusalReason::kQueue;
}

}  // namespace

std::string ServerDescription::Fingerprint() const {
  const std::string all =
      absl::StrCat(version, " ", git_sha, " ", dtype, " ", kv_dtype, " ", device);
  const auto* bytes = reinterpret_cast<const Bytef*>(all.data());
  return absl::StrFormat("fp_%08x", crc32(0, bytes, static_cast<uInt>(all.size())));
}

ServerCore::ServerCore(EngineThread& engine_thread, ModelConfig model_config,
                       ConversionContext conversion, ServerDescription about,
                       const ServerLimits& limits)
    : engine(engine_thread),
      model(std::move(model_config)),
      context(std::move(conversion)),
      description(std::move(about)),
      access(limits.access),
      client_metadata_(limits.client_metadata),
      calls_(limits.max_calls, limits.max_call_bytes),
      stalls_(limits.stall_timeout),
      delivery_(limits.delivery_threads, limits.has_threads),
      admission_(limits.has_threads ? 1 : AdmissionPool::kNoThreads),
      tokenizing_(limits.has_threads ? 1 : AdmissionPool::kNoThreads),
      grammars_(limits.has_threads),
      auditor_(engine, context.limits.vocab_size, limits.audit, metrics_, limits.has_threads) {
  engine.SetDelivery(&delivery_);
}

CallInfo ServerCore::Describe(const char* method, const std::string& peer,
                              const CallerHeaders& headers) {
  CallInfo call;
  call.method = method;
  call.peer = peer;
  const std::optional<uint64_t> verified = VerifiedClientOf(headers);
  call.tenant = verified.value_or(0);
  call.client = verified ? *verified : UnverifiedClientOf(peer);
  call.administrator = access->IsAdministrator(headers.authorization);
  call.trace = ParseTraceParent({headers.traceparent.data(), headers.traceparent.size()});
  call.arrival = engine.Now();
  // A client's own name in front of the gateway's would otherwise be taken for it.
  if (headers.client_twice) {
    call.refusal = absl::InvalidArgumentError(client_metadata_ + ": came twice");
  }
  return call;
}

absl::Status ServerCore::AdmitPrompt(CallInfo* call, int64_t bytes) {
  absl::Status status = CheckQueue(*call);
  if (status.ok()) return AdmitShort(call, bytes);
  refusals_.Add(*call, ReasonOf(status), status, call->arrival);
  return status;
}

absl::Status ServerCore::CheckPrompts(const CallInfo& call, const std::vector<int64_t>& bytes) {
  if (bytes.size() < 2) return absl::OkStatus();
  const int64_t others = std::accumulate(bytes.begin() + 1, bytes.end(), int64_t{0});
  const auto count = static_cast<int64_t>(bytes.size());
  if (!calls_.Exceeds(count, call.share.bytes() + kHeldPerByte * others)) return absl::OkStatus();
  refusals_.Add(call, RefusalReason::kBudget, MessageTooLarge(), call.arrival);
  return MessageTooLarge();
}

absl::Status ServerCore::AdmitShort(CallInfo* call, int64_t bytes) {
  if (!call->refusal.ok()) {
    refusals_.Add(*call, RefusalReason::kCredentials, call->refusal, call->arrival);
    return call->refusal;
  }
  absl::StatusOr<CallBudget::Share> share = calls_.TakeShare(call->client, kHeldPerByte * bytes);
  if (!share.ok()) {
    refusals_.Add(*call, RefusalReason::kBudget, share.status(), call->arrival);
    return share.status();
  }
  call->share = *std::move(share);
  return absl::OkStatus();
}

absl::Status ServerCore::AdmitTokenizing(CallInfo* call, int64_t bytes) {
  absl::Status status = AdmitShort(call, bytes);
  if (!status.ok() || tokenizing_.queued() < kMaxTextsQueued) return status;
  status = absl::ResourceExhaustedError("too many texts wait to be tokenized");
  refusals_.Add(*call, RefusalReason::kQueue, status, call->arrival);
  return status;
}

absl::Status ServerCore::CheckQueue(const CallInfo& call) const {
  if (engine.draining()) return absl::UnavailableError("the server is draining");
  if (call.deadline <= call.arrival) {
    return absl::DeadlineExceededError("the deadline has passed on arrival");
  }
  // The engine's queue has room for a client that holds less than others.
  if (!calls_.HoldsMost(call.client)) return absl::OkStatus();
  const EngineStats stats = engine.stats();
  const EngineOptions& options = context.engine;
  // Prompts on their way to the engine take free slots and places in the queue; the engine would
  // tell only after its step.
  const int64_t slots = std::max<int64_t>(0, context.limits.max_num_seqs - stats.running);
  if (stats.waiting >= options.max_num_queued_reqs ||
      stats.waiting + admitting() >= options.max_num_queued_reqs + slots) {
    return absl::ResourceExhaustedError("the queue is full: too many requests");
  }
  if (stats.queued_tokens >= options.max_num_queued_tokens) {
    return absl::ResourceExhaustedError("the queue is full: too many prompt tokens");
  }
  // A client with few calls does not wait for the whole queue: the engine knows how long.
  if (!calls_.HoldsMost(call.client, context.limits.max_num_seqs)) return absl::OkStatus();
  const Seconds wait = engine.QueueSeconds();
  if (options.max_queue_seconds > 0 && wait > options.max_queue_seconds) {
    return absl::ResourceExhaustedError("the queue is full: it is too long in seconds");
  }
  if (call.arrival + wait > call.deadline) {
    return absl::ResourceExhaustedError("the queue is longer than the deadline");
  }
  return absl::OkStatus();
}

bool ServerCore::Idle() const {
  return calls_.calls() == 0 && admitting_ == 0 && engine.idle() && registry_.empty();
}

int64_t ServerCore::RetryAfterMs() const {
  return static_cast<int64_t>(std::clamp(1000.0 * engine.QueueSeconds(), 100.0, 60000.0));
}

absl::Status ServerCore::Undrain() {
  const MutexLock lock(mutex_);
  if (shutting_down_) return absl::FailedPreconditionError("the server is shutting down");
  engine.Undrain();
  return absl::OkStatus();
}

void ServerCore::ShutDown() {
  const MutexLock lock(mutex_);
  shutting_down_ = true;
  engine.Drain();
}

double ServerCore::UptimeSeconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

uint64_t ServerCore::ClientOf(const std::string& peer, const CallerHeaders& headers) {
  const std::optional<uint64_t> verified = VerifiedClientOf(headers);
  return verified ? *verified : UnverifiedClientOf(peer);
}

std::optional<uint64_t> ServerCore::VerifiedClientOf(const CallerHeaders& headers) {
  if (!headers.client.empty()) {
    Sha256 hash;  // a client is the same after a restart, because it is in the names of files
    const std::string name = absl::StrCat("client of a gateway: ", headers.client);
    hash.Add(name.data(), name.size());
    uint64_t client = 0;
    std::memcpy(&client, hash.Get().data(), sizeof(client));
    return client;
  }
  return access->ClientOf(headers.authorization);
}

}  // namespace fox
