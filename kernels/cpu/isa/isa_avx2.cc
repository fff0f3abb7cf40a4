// The inner loops for AVX2 and FMA. See isa_kernels.inc.
#include <immintrin.h>

#include "kernels/cpu/isa/isa_kernels.h"

#define FOX_VECTOR_BYTES 32

namespace fox::isa_avx2 {

#include "kernels/cpu/isa/isa_kernels.inc"

extern const IsaKernels kKernels;
const IsaKernels kKernels = FOX_ISA_TABLE("avx2");

}  // namespace fox::isa_avx2
