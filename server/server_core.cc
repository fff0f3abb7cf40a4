// ServerCore: see server_core.h.
#include "server/server_core.h"

#include <algorithm>
#include <utility>

#include "server/generation.h"

namespace fox {

ServerCore::ServerCore(EngineThread& engine_thread, ModelConfig model_config,
                       ConversionContext conversion, ServerDescription what,
                       const ServerLimits& limits)
    : engine(engine_thread),
      model(std::move(model_config)),
      context(std::move(conversion)),
      description(std::move(what)),
      calls_(limits.max_calls, limits.max_call_bytes),
      stalls_(limits.stall_timeout),
      delivery_(limits.delivery_threads) {
  engine.SetBatchEnd([this](Seconds now) { delivery_.Flush(now); });
}

absl::Status ServerCore::CheckAdmission() const {
  if (engine.draining()) return absl::UnavailableError("the server is draining");
  const EngineStats stats = engine.stats();
  const EngineOptions& options = context.engine;
  // What is on its way may still find a free slot, hence the slots on top.
  if (stats.waiting >= options.max_num_queued_reqs ||
      admitting_.load() >= options.max_num_queued_reqs + context.limits.max_num_seqs) {
    return absl::ResourceExhaustedError("the queue is full: too many requests");
  }
  if (stats.queued_tokens >= options.max_num_queued_tokens) {
    return absl::ResourceExhaustedError("the queue is full: too many prompt tokens");
  }
  return absl::OkStatus();
}

bool ServerCore::Enter(const std::string& request_id, std::shared_ptr<Generation> call) {
  return registry_.Add(request_id, std::move(call));
}

void ServerCore::AbandonAll(const absl::Status& status) {
  for (const std::shared_ptr<Generation>& call : registry_.All()) call->Abandon(status);
}

std::shared_ptr<Generation> ServerCore::Find(const std::string& request_id) const {
  return registry_.Find(request_id);
}

int64_t ServerCore::RetryAfterMs() const {
  const double seconds = mean_seconds_.load() / std::max(1, context.limits.max_num_seqs);
  return static_cast<int64_t>(std::clamp(1000.0 * seconds, 100.0, 30000.0));
}

void ServerCore::RecordDuration(double seconds) {
  mean_seconds_.store(0.9 * mean_seconds_.load() + 0.1 * seconds);  // a lost update does not matter
}

double ServerCore::UptimeSeconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace fox
