// HealthService: see health_service.h.
#include "server/rpc/health_service.h"

#include <utility>

#include "grpc/grpc_security.h"
#include "grpcpp/impl/codegen/rpc_service_method.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "server/rpc/grpc_transport.h"

namespace fox {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ServingStatus = HealthCheckResponse::ServingStatus;
using Bytes = grpc::ByteBuffer;
using Reactor = grpc::ServerBidiReactor<Bytes, Bytes>;

constexpr int64_t kMaxWatches = 1024, kMaxWatchBytes = 1 << 20;

absl::StatusOr<std::string> ServiceOf(const Bytes& bytes) {
  HealthCheckRequest request;
  absl::Status status = ParseShortMessage(bytes, &request);
  if (!status.ok()) return status;
  return request.service();
}

// As the port's credentials found it in the same headers.
uint64_t ClientOf(const PublicCallLimit& limit, const grpc::CallbackServerContext& context,
                  grpc_call* call) {
  const auto& metadata = context.client_metadata();
  const auto name = metadata.find(limit.client_metadata());
  grpc_auth_context* const connection = grpc_call_auth_context(call);
  grpc_auth_context_release(connection);
  if (name == metadata.end()) return PublicCallLimit::ClientOf(connection, "");
  return PublicCallLimit::ClientOf(connection, {name->second.data(), name->second.size()});
}

void Encode(ServingStatus status, Bytes* out) {
  HealthCheckResponse response;
  response.set_status(status);
  out->Clear();
  *out = ToByteBuffer(response.SerializeAsString());
}

}  // namespace

class HealthService::CheckCall final : public Reactor {
 public:
  CheckCall(HealthService& service, grpc::CallbackServerContext* context)
      : service_(service),
        client_(ClientOf(*service.limit_, *context, context->c_call())),
        watch_(service.core_.probes(), EndOf(context->c_call()),
               DescribeCall("Check", *context, service.core_).client) {
    watch_.BeginWrite();  // its message has to come in time, too
    StartRead(&bytes_);
  }

  void OnReadDone(bool) override {
    const absl::StatusOr<std::string> name = ServiceOf(bytes_);
    if (!name.ok()) return Finish(ToGrpc(name.status()));
    const ServingStatus status = service_.StatusOf(*name);
    if (status == HealthCheckResponse::SERVICE_UNKNOWN)
      return Finish({grpc::NOT_FOUND, "service: not one of ours"});
    Encode(status, &bytes_);
    StartWrite(&bytes_);
  }
  void OnWriteDone(bool) override {
    Leave();
    Finish(grpc::Status::OK);
  }
  void OnDone() override {
    Leave();
    delete this;
  }

 private:
  // Its end may come long after its answer was taken, and the next call's headers before it.
  void Leave() {
    if (!std::exchange(left_, true)) service_.limit_->Leave(client_);
  }

  HealthService& service_;
  const uint64_t client_;
  bool left_ = false;
  StallMonitor::Watch watch_;
  Bytes bytes_;
};

// Writes the status when it is another than it wrote last, one write at a time.
class HealthService::WatchCall final : public Reactor {
 public:
  WatchCall(HealthService& service, grpc::CallbackServerContext* context)
      : service_(service), watch_(service.core_.stalls(), EndOf(context->c_call())) {
    const CallInfo call = DescribeCall("Watch", *context, service.core_);
    absl::StatusOr<CallBudget::Share> share = service.budget_.TakeShare(call.client, 0);
    if (!share.ok()) {
      Finish(EndStatus(share.status(), service.core_.RetryAfterMs(), context));
      return;
    }
    share_ = *std::move(share);
    watch_.BeginWrite();
    StartRead(&bytes_);
  }

  void OnReadDone(bool) override {
    watch_.EndWrite();
    absl::StatusOr<std::string> name = ServiceOf(bytes_);
    if (!name.ok()) return Finish(ToGrpc(name.status()));
    {
      const MutexLock lock(service_.mutex_);
      service_.watchers_.insert(self_);
    }
    Advance([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      name_ = *std::move(name);
      busy_ = false;
    });
  }
  void OnWriteDone(bool) override {
    watch_.EndWrite();
    Advance([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { busy_ = false; });
  }
  void OnCancel() override {
    Advance([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { cancelled_ = true; });
  }
  void OnDone() override {
    {
      const MutexLock lock(service_.mutex_);
      service_.watchers_.erase(self_);
    }
    self_ = nullptr;
  }

  // Changes the call's state; then writes, or ends the call, where it is time.
  template <class Change>
  void Advance(const Change& change) {
    bool end = false;
    {
      const MutexLock lock(mutex_);
      change();
      const ServingStatus status = service_.StatusOf(name_);
      if (busy_ || (!cancelled_ && status == written_status_)) return;
      busy_ = true;  // for good, if it ends
      end = cancelled_;
      written_status_ = status;
      if (!end) Encode(status, &bytes_);
    }
    if (end) return Finish(grpc::Status::CANCELLED);
    watch_.BeginWrite();
    StartWrite(&bytes_);
  }

 private:
  HealthService& service_;
  StallMonitor::Watch watch_;
  CallBudget::Share share_;
  Bytes bytes_;
  Mutex mutex_;
  std::string name_ ABSL_GUARDED_BY(mutex_);
  ServingStatus written_status_ ABSL_GUARDED_BY(mutex_) = HealthCheckResponse::UNKNOWN;
  bool busy_ ABSL_GUARDED_BY(mutex_) = true;  // reads, writes or has ended
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<WatchCall> self_{this};  // until OnDone
};

HealthService::HealthService(ServerCore& core, std::shared_ptr<PublicCallLimit> limit)
    : core_(core), limit_(std::move(limit)), budget_(kMaxWatches, kMaxWatchBytes) {
  Add<CheckCall>(0, "/grpc.health.v1.Health/Check");
  Add<WatchCall>(1, "/grpc.health.v1.Health/Watch");
}

// As a stream, whose calls the library hands over before they have a message.
template <class CallReactor>
void HealthService::Add(int index, const char* path) {
  AddMethod(new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                 nullptr));
  MarkMethodRawCallback(index, new grpc::internal::CallbackBidiHandler<Bytes, Bytes>(
                                   [this](grpc::CallbackServerContext* context) {
                                     return new CallReactor(*this, context);
                                   }));
}

void HealthService::SetServingStatus(const std::string& service, bool serving) {
  {
    const MutexLock lock(mutex_);
    serving_[service] = serving;
  }
  AdvanceWatchers();
}

void HealthService::SetServingStatus(bool serving) {
  {
    const MutexLock lock(mutex_);
    for (auto& [service, status] : serving_) status = serving;
  }
  AdvanceWatchers();
}

ServingStatus HealthService::StatusOf(const std::string& service) {
  const MutexLock lock(mutex_);
  const auto found = serving_.find(service);
  if (found == serving_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return found->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::AdvanceWatchers() {
  std::unordered_set<std::shared_ptr<WatchCall>> watchers;
  {
    const MutexLock lock(mutex_);
    watchers = watchers_;
  }
  for (const std::shared_ptr<WatchCall>& watcher : watchers) watcher->Advance([] {});
}

}  // namespace fox
