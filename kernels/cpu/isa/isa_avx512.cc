// The inner loops for AVX-512. See isa_kernels.inc.
#include <immintrin.h>

#include "kernels/cpu/isa/isa_kernels.h"

#define FOX_VECTOR_BYTES 64

namespace fox::isa_avx512 {

#include "kernels/cpu/isa/isa_kernels.inc"

extern const IsaKernels kKernels;
const IsaKernels kKernels = FOX_ISA_TABLE("avx512");

}  // namespace fox::isa_avx512
