// For the thread sanitizer: the order that gRPC gives. Distributions compile it, and Abseil,
// without the sanitizer, which then takes what is handed from one thread to another through them
// for races. The functions here stand before the libraries' own, tell it what each guarantees, and
// go on to them: what happened before a batch was started on a call is seen by what learns of the
// call's batches, what happened under a lock by what takes it next, and what was done with a status
// by what frees it. Nothing else is ordered, so a race between our own threads stays one.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace {

char ended_calls;  // its address: for what sees the server's end

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

// The C++ library's headers do so before they tell that a batch is done.
void grpc_call_unref(grpc_call* call) {
  static const auto next = Next<decltype(&grpc_call_unref)>("grpc_call_unref");
  After(call);
  Before(call);
  Before(&ended_calls);
  next(call);
}

// A server's shutdown has waited for its last call, by a count of its own.
void grpc_server_destroy(grpc_server* server) {
  static const auto next = Next<decltype(&grpc_server_destroy)>("grpc_server_destroy");
  next(server);
  After(&ended_calls);
}

}  // extern "C"

namespace absl {
ABSL_NAMESPACE_BEGIN

// One owner less, by an atomic count; the last one frees what the others have read.
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
