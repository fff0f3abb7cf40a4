// The inner loops for any processor: 16-byte vectors, which are NEON's on aarch64. See
// isa_kernels.inc.
#include "kernels/cpu/isa/isa_kernels.h"

#define FOX_VECTOR_BYTES 16

namespace fox::isa_portable {

#include "kernels/cpu/isa/isa_kernels.inc"

extern const IsaKernels kKernels;
#if defined(__aarch64__)
const IsaKernels kKernels = FOX_ISA_TABLE("neon");
#else
const IsaKernels kKernels = FOX_ISA_TABLE("portable");
#endif

}  // namespace fox::isa_portable
