// Preloaded into a fox-server on a GPU: counts calls of CUDA's driver and makes one of them fail.
// The runtime, which is linked into the program, looks the driver's functions up by name; it is
// given the address of a stub for each, which asks the page before it goes on to the function.
#include <dlfcn.h>

#include <cctype>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "tests/faults/fault_page.h"

namespace {

using fox::FaultKind;
using fox::FaultPage;

constexpr int kMaxFunctions = 1024;
constexpr int kStubBytes = 16;

FaultPage* Page() {
  static FaultPage* const page = FaultPage::Inherited();
  return page;
}

char g_names[kMaxFunctions][64];
int g_functions = 0;
std::mutex g_mutex;

using GetProcAddress = int (*)(const char*, void**, int, uint64_t);
using GetProcAddressV2 = int (*)(const char*, void**, int, uint64_t, void*);
GetProcAddress g_get = nullptr;
GetProcAddressV2 g_get_v2 = nullptr;

}  // namespace

extern "C" {

void* fault_functions[kMaxFunctions];
extern char fault_stubs[];

// The error with which the call of function `index` fails; 0: the call is made.
int64_t fault_driver_error(uint64_t index) {
  FaultPage* const page = Page();
  if (page->kind.load() != FaultKind::kDriverCall) return 0;
  if (std::strstr(g_names[index], page->driver_calls) == nullptr) return 0;
  return page->Fails(FaultKind::kDriverCall) ? page->error.load() : 0;
}
}

// A stub pushes its number. The common code saves the arguments, asks fault_driver_error, and
// either returns the error or goes on to the function with registers unchanged.
asm(R"(
.text
.p2align 4
.globl fault_stubs
.hidden fault_stubs
fault_stubs:
.set index, 0
.rept 1024
  .p2align 4
  pushq $index
  jmp fault_ask
  .set index, index + 1
.endr
.p2align 4
fault_ask:
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  pushq %rax
  movq 56(%rsp), %rdi
  subq $8, %rsp
  call fault_driver_error@PLT
  addq $8, %rsp
  movq %rax, %r10
  popq %rax
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  popq %r11
  testq %r10, %r10
  jne 1f
  movq fault_functions@GOTPCREL(%rip), %r10
  jmpq *(%r10,%r11,8)
1:
  movl %r10d, %eax
  ret
)");

namespace {

// cuInit, not cudbgInit or cublasCreate.
bool IsDriverCall(const char* name) {
  return std::strncmp(name, "cu", 2) == 0 && std::isupper(static_cast<unsigned char>(name[2])) != 0;
}

int GetThroughStubs(const char* name, void** function, int version, uint64_t flags);
int GetThroughStubsV2(const char* name, void** function, int version, uint64_t flags, void* result);

// The result of a lookup of `name` that found `function`: its stub, or `function` itself.
void* StubFor(const char* name, void* function) {
  if (function == nullptr || Page() == nullptr || !IsDriverCall(name)) return function;
  if (std::strcmp(name, "cuGetProcAddress") == 0 || std::strcmp(name, "cuGetProcAddress_v2") == 0) {
    return function;  // replaced by the caller, which knows which of the two it is
  }
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (int i = 0; i < g_functions; ++i) {
    if (fault_functions[i] == function) return fault_stubs + i * kStubBytes;
  }
  if (g_functions == kMaxFunctions) return function;
  std::strncpy(g_names[g_functions], name, sizeof(g_names[0]) - 1);
  fault_functions[g_functions] = function;
  return fault_stubs + g_functions++ * kStubBytes;
}

void Replace(const char* name, void** function, int version) {
  if (std::strcmp(name, "cuGetProcAddress") != 0 && std::strcmp(name, "cuGetProcAddress_v2") != 0) {
    *function = StubFor(name, *function);
  } else if (version >= 12000 || std::strcmp(name, "cuGetProcAddress_v2") == 0) {
    g_get_v2 = reinterpret_cast<GetProcAddressV2>(*function);
    *function = reinterpret_cast<void*>(&GetThroughStubsV2);
  } else {
    g_get = reinterpret_cast<GetProcAddress>(*function);
    *function = reinterpret_cast<void*>(&GetThroughStubs);
  }
}

int GetThroughStubs(const char* name, void** function, int version, uint64_t flags) {
  const int error = g_get(name, function, version, flags);
  if (error == 0 && function != nullptr && *function != nullptr) Replace(name, function, version);
  return error;
}

int GetThroughStubsV2(const char* name, void** function, int version, uint64_t flags,
                      void* result) {
  const int error = g_get_v2(name, function, version, flags, result);
  if (error == 0 && function != nullptr && *function != nullptr) Replace(name, function, version);
  return error;
}

}  // namespace

// The program's own lookups.
extern "C" __attribute__((visibility("default"))) void* dlsym(void* handle,
                                                              const char* name) noexcept {
  using Dlsym = void* (*)(void*, const char*);
  static const auto real = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  if (!IsDriverCall(name) || Page() == nullptr) return real(handle, name);
  void* found = real(handle, name);
  // By its plain name the older of the two is found.
  if (found != nullptr) Replace(name, &found, 0);
  return found;
}
