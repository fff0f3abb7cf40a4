// RawCall: see raw_call.h.
#include "tests/e2e/raw_call.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "engine/mutex.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"

namespace fox {

std::shared_ptr<grpc::ClientContext> RawCall::Start(grpc::GenericStub& stub,
                                                    const RawRequest& request, OnMessage on_message,
                                                    OnEnd on_end) {
  auto* call = new RawCall(std::move(on_message), std::move(on_end));
  std::shared_ptr<grpc::ClientContext> context = call->context_;
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::milliseconds(request.deadline_ms));
  const grpc::Slice slice(request.message);
  call->request_ = grpc::ByteBuffer(&slice, 1);
  stub.PrepareBidiStreamingCall(context.get(), request.method, grpc::StubOptions(), call);
  call->StartWriteLast(&call->request_, grpc::WriteOptions());
  call->StartRead(&call->response_);
  call->StartCall();
  return context;
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
    if (!on_message_(bytes)) context_->TryCancel();
  }
  response_.Clear();
  StartRead(&response_);
}

void RawCall::OnDone(const grpc::Status& status) {
  Metadata trailing;
  for (const auto& [key, value] : context_->GetServerTrailingMetadata()) {
    trailing.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
  }
  const OnEnd on_end = std::move(on_end_);
  delete this;  // and its reference to the channel
  on_end(status, trailing);
}

std::shared_ptr<grpc::Channel> ConnectTo(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

// Without a RawCall: the thread sanitizer does not see what orders the end of one.
grpc::Status Exchange(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                      const std::string& request, std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer out;
  call->Read(&out, nullptr);
  queue.Next(&tag, &ok);
  grpc::Slice flat;
  if (ok && response != nullptr && out.DumpToSingleSlice(&flat).ok()) {
    response->assign(reinterpret_cast<const char*>(flat.begin()), flat.size());
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return status;
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
