// Preloaded into a fox-server: fails an allocation, a system call or the start of a thread that the
// page names, counted from the beginning of main.
//
// System calls are trapped by a seccomp filter, so the C library's own calls count as well; the
// handler makes the call again from an address that the filter lets through.
#include "tests/faults/call_faults.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include <cerrno>
#include <cstddef>

#include "tests/faults/fault_page.h"

using fox::FaultKind;
using fox::FaultPage;

namespace {

FaultPage* g_page = nullptr;  // null before main, and in a process that is not under test

bool Fails(FaultKind kind) { return g_page != nullptr && g_page->Fails(kind); }

template <class Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool FailsAllocation() {
  if (!Fails(FaultKind::kAllocation)) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

// ---- allocations --------------------------------------------------------------------------------

extern "C" {

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) { return FailsAllocation() ? nullptr : __libc_malloc(bytes); }

void* calloc(size_t count, size_t bytes) {
  return FailsAllocation() ? nullptr : __libc_calloc(count, bytes);
}

void* realloc(void* old, size_t bytes) {
  return FailsAllocation() ? nullptr : __libc_realloc(old, bytes);
}

void* memalign(size_t alignment, size_t bytes) {
  return FailsAllocation() ? nullptr : __libc_memalign(alignment, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void** out, size_t alignment, size_t bytes) {
  void* const data = memalign(alignment, bytes);
  if (data == nullptr) return ENOMEM;
  *out = data;
  return 0;
}

// ---- threads ------------------------------------------------------------------------------------

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = Next<Create>("pthread_create");
  return Fails(FaultKind::kThread) ? EAGAIN : create(thread, attributes, start, argument);
}

// ---- system calls -------------------------------------------------------------------------------

int64_t fault_system_call(int64_t number, int64_t a, int64_t b, int64_t c, int64_t d, int64_t e,
                          int64_t f);
extern char fault_system_call_end[];
}

asm(R"(
.text
.globl fault_system_call
.hidden fault_system_call
.globl fault_system_call_end
.hidden fault_system_call_end
fault_system_call:
  movq %rdi, %rax
  movq %rsi, %rdi
  movq %rdx, %rsi
  movq %rcx, %rdx
  movq %r8, %r10
  movq %r9, %r8
  movq 8(%rsp), %r9
  syscall
fault_system_call_end:
  ret
)");

namespace {

void OnTrap(int, siginfo_t* info, void* context) {
  const int saved = errno;
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (g_page->Fails(FaultKind::kSystemCall)) {
    registers[REG_RAX] = -g_page->error.load();
  } else {
    registers[REG_RAX] = fault_system_call(info->si_syscall, registers[REG_RDI], registers[REG_RSI],
                                           registers[REG_RDX], registers[REG_R10],
                                           registers[REG_R8], registers[REG_R9]);
  }
  errno = saved;
}

// Traps the system calls that the page names.
void InstallFilter() {
  struct sigaction action {};
  action.sa_sigaction = OnTrap;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  sigaction(SIGSYS, &action, nullptr);

  const auto end = reinterpret_cast<uint64_t>(fault_system_call_end);
  sock_filter filter[32];
  unsigned short count = 0;
  const auto load = [&](size_t offset) {
    filter[count++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset));
  };
  const auto skip_unless = [&](uint64_t value, unsigned char instructions) {
    filter[count++] =
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(value), 0, instructions);
  };
  load(offsetof(seccomp_data, instruction_pointer));
  skip_unless(end & 0xffffffff, 3);
  load(offsetof(seccomp_data, instruction_pointer) + 4);
  skip_unless(end >> 32, 1);
  filter[count++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  load(offsetof(seccomp_data, nr));
  for (const int32_t number : g_page->system_calls) {
    if (number < 0) continue;
    skip_unless(static_cast<uint64_t>(number), 1);
    filter[count++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
  }
  filter[count++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_fprog program{count, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(fox::kNoSeccomp);
  }
}

using MainFunction = int (*)(int, char**, char**);
MainFunction g_main = nullptr;

int MainUnderTest(int argc, char** argv, char** environment) {
  g_page = FaultPage::Inherited();
  if (g_page != nullptr && g_page->traps_system_calls) InstallFilter();
  return g_main(argc, argv, environment);
}

}  // namespace

extern "C" int __libc_start_main(MainFunction main, int argc, char** argv, void (*init)(),
                                 void (*fini)(), void (*loader_fini)(), void* stack_end) {
  using Start = int (*)(MainFunction, int, char**, void (*)(), void (*)(), void (*)(), void*);
  g_main = main;
  return Next<Start>("__libc_start_main")(MainUnderTest, argc, argv, init, fini, loader_fini,
                                          stack_end);
}

namespace fox {

bool CanFailCalls() { return g_page != nullptr; }

}  // namespace fox
