// RawCall: see raw_call.h.
#include "tests/torture/raw_call.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "engine/mutex.h"

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
