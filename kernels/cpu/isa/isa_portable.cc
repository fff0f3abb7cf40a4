// The inner loops for any processor (16-byte vectors). See isa_kernels.inc.
#include "kernels/cpu/isa/isa_kernels.h"

#define FOX_VECTOR_BYTES 16

namespace fox::isa_portable {

#include "kernels/cpu/isa/isa_kernels.inc"

extern const IsaKernels kKernels;
const IsaKernels kKernels = FOX_ISA_TABLE("portable");

}  // namespace fox::isa_portable
