// RawCall: see raw_call.h.
#include "tests/e2e/raw_call.h"

#include <atomic>
#include <chrono>
#include <future>
#include <utility>

#include "engine/mutex.h"
#include "grpcpp/create_channel.h"

namespace fox {

RawCall* RawCall::Start(grpc::GenericStub& stub, const RawRequest& request, OnMessage on_message,
                        OnEnd on_end) {
  auto* call = new RawCall(std::move(on_message), std::move(on_end));
  call->context_.set_deadline(std::chrono::system_clock::now() +
                              std::chrono::milliseconds(request.deadline_ms));
  const grpc::Slice slice(request.message);
  call->request_ = grpc::ByteBuffer(&slice, 1);
  stub.PrepareBidiStreamingCall(&call->context_, request.method, grpc::StubOptions(), call);
  call->StartWriteLast(&call->request_, grpc::WriteOptions());
  call->StartRead(&call->response_);
  call->StartCall();
  return call;
}

void RawCall::OnReadDone(bool ok) {
  if (!ok) return;
  if (on_message_) {
    std::string bytes;
    std::vector<grpc::Slice> slices;
    if (response_.Dump(&slices).ok()) {
      for (const grpc::Slice& slice : slices) {
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
    }
    if (!on_message_(bytes)) context_.TryCancel();
  }
  response_.Clear();
  StartRead(&response_);
}

void RawCall::OnDone(const grpc::Status& status) {
  on_end_(status, context_);
  delete this;
}

std::shared_ptr<grpc::Channel> ConnectTo(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

grpc::Status Exchange(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                      const std::string& request, std::string* response) {
  grpc::GenericStub stub(channel);
  std::promise<grpc::Status> end;
  RawCall::Start(
      stub, {method, request, 20000},
      [response](const std::string& message) {
        if (response != nullptr) *response = message;
        return true;
      },
      [&end](const grpc::Status& status, const grpc::ClientContext&) { end.set_value(status); });
  return end.get_future().get();
}

namespace {

struct Loop {
  std::function<bool(int64_t, std::function<void()>)> start;
  std::atomic<int64_t> next{0};
  Mutex mutex;
  CondVar ended;
  int open ABSL_GUARDED_BY(mutex) = 0;

  void StartOne() {
    if (start(next++, [this] { StartOne(); })) return;
    const MutexLock lock(mutex);
    if (--open == 0) ended.NotifyAll();
  }
};

}  // namespace

void RunCalls(int open,
              const std::function<bool(int64_t index, std::function<void()> done)>& start) {
  Loop loop;
  loop.start = start;
  {
    const MutexLock lock(loop.mutex);
    loop.open = open;
  }
  for (int i = 0; i < open; ++i) loop.StartOne();
  const MutexLock lock(loop.mutex);
  while (loop.open > 0) loop.ended.Wait(loop.mutex);
}

}  // namespace fox
