// Selects the instruction set at run time. FOX_ISA=portable|avx2|avx512 selects a lesser one
// (tests).
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/isa/isa_kernels.h"

namespace fox {
namespace {

const IsaKernels& Select() {
#ifdef FOX_X86_ISAS
  const char* wanted = std::getenv("FOX_ISA");
  const auto allowed = [&](const char* name) {
    return wanted == nullptr || std::strcmp(wanted, name) == 0;
  };
  __builtin_cpu_init();
  if (allowed("avx512") && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return isa_avx512::kKernels;
  }
  if (allowed("avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return isa_avx2::kKernels;
  }
#endif
  return isa_portable::kKernels;
}

}  // namespace

const IsaKernels& SelectIsaKernels() {
  static const IsaKernels& kernels = Select();
  return kernels;
}

}  // namespace fox
