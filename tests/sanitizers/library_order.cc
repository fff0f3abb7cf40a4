// Tells the thread sanitizer which order of events gRPC and Abseil guarantee. Distributions compile
// both without the sanitizer, which then reports data that passes through them from one thread to
// another as a race. The functions here replace the libraries' functions, announce the order, and
// call the originals. The order is: the start of a batch on a call happens before its completion;
// the release of a lock before the next acquisition; every use of a status before it is freed.
// Nothing else is ordered, so races between our own threads are still found.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace {

char ended_calls;  // only its address is used: orders the calls' ends before the server's

void Before(const void* object) { __tsan_release(const_cast<void*>(object)); }
void After(const void* object) { __tsan_acquire(const_cast<void*>(object)); }

template <class Function>
Function Next(const std::string& symbol) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol.c_str()));
}

// `member` as the compiler names it: length, name, types of parameters.
std::string Mangled(const char* type, const char* member) {
  const std::string space = ABSL_INTERNAL_INLINE_NAMESPACE_STR;
  return "_ZN4absl" + std::to_string(space.size()) + space + type + member;
}

}  // namespace

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  static const auto next = Next<decltype(&grpc_call_start_batch)>("grpc_call_start_batch");
  Before(call);
  return next(call, ops, count, tag, reserved);
}

// The headers of the C++ library call it before they report that a batch is done.
void grpc_call_unref(grpc_call* call) {
  static const auto next = Next<decltype(&grpc_call_unref)>("grpc_call_unref");
  After(call);
  Before(call);
  Before(&ended_calls);
  next(call);
}

// The shutdown of a server waits for its last call, by a count that the sanitizer does not see.
void grpc_server_destroy(grpc_server* server) {
  static const auto next = Next<decltype(&grpc_server_destroy)>("grpc_server_destroy");
  next(server);
  After(&ended_calls);
}

}  // extern "C"

namespace absl {
ABSL_NAMESPACE_BEGIN

// Drops one reference by an atomic count; the last owner frees memory that the others have read.
void Status::UnrefNonInlined(uintptr_t rep) {
  static const auto next = Next<void (*)(uintptr_t)>(Mangled("6Status", "15UnrefNonInlinedEm"));
  Before(RepToPointer(rep));
  After(RepToPointer(rep));
  next(rep);
}

void Mutex::Lock() {
  static const auto next = Next<void (*)(Mutex*)>(Mangled("5Mutex", "4LockEv"));
  next(this);
  After(this);
}

void Mutex::Unlock() {
  static const auto next = Next<void (*)(Mutex*)>(Mangled("5Mutex", "6UnlockEv"));
  Before(this);
  next(this);
}

bool Mutex::TryLock() {
  static const auto next = Next<bool (*)(Mutex*)>(Mangled("5Mutex", "7TryLockEv"));
  const bool locked = next(this);
  if (locked) After(this);
  return locked;
}

void CondVar::Wait(Mutex* mutex) {
  static const auto next =
      Next<void (*)(CondVar*, Mutex*)>(Mangled("7CondVar", "4WaitEPNS0_5MutexE"));
  Before(mutex);
  next(this, mutex);
  After(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  static const auto next = Next<bool (*)(CondVar*, Mutex*, absl::Duration)>(
      Mangled("7CondVar", "15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  Before(mutex);
  const bool expired = next(this, mutex, timeout);
  After(mutex);
  return expired;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  static const auto next = Next<bool (*)(CondVar*, Mutex*, absl::Time)>(
      Mangled("7CondVar", "16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  Before(mutex);
  const bool expired = next(this, mutex, deadline);
  After(mutex);
  return expired;
}

ABSL_NAMESPACE_END
}  // namespace absl
