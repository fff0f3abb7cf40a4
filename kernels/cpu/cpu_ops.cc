// CpuOps: memory, threads and the choice of matrix product; the arithmetic is in other files.
#include "kernels/cpu/cpu_ops.h"

#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "kernels/cpu/isa/isa_kernels.h"

namespace fox {
namespace {

std::unique_ptr<Gemm> MakeGemm(const CpuOptions& options, ThreadPool& pool) {
#ifdef FOX_ONEDNN
  if (!options.plain_gemm && options.dtype != DType::kF64)
    return MakeOneDnnGemm(options.dtype, pool);
#endif
  return MakePlainGemm(options.dtype, pool);
}

// The address sanitizer knows the bounds of the heap but not of mappings.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kGuardBytes = 4096;  // after a buffer; an access to them is reported
void Guard(void* end) { __asan_poison_memory_region(end, kGuardBytes); }
void Unguard(void* end) { __asan_unpoison_memory_region(end, kGuardBytes); }
#else
constexpr size_t kGuardBytes = 0;
void Guard(void*) {}
void Unguard(void*) {}
#endif

}  // namespace

CpuOps::CpuOps(const CpuOptions& options)
    : residual_dtype_(options.dtype == DType::kF64 ? DType::kF64 : DType::kF32),
      pool_(options.threads > 0
                ? options.threads
                : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
      gemm_(MakeGemm(options, pool_)),
      block_gemm_(*gemm_, pool_),
      audit_(options.audit) {}

std::string CpuOps::Description() const {
  return "cpu (" + std::to_string(pool_.threads()) +
         (pool_.threads() == 1 ? " thread, " : " threads, ") + gemm_->Name() + ", attention " +
         SelectIsaKernels().name + ")";
}

// Anonymous mappings are zeroed and take memory only where touched.
Buffer CpuOps::Allocate(size_t bytes) {
  if (bytes == 0) return {};
  void* data = mmap(nullptr, bytes + kGuardBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  Guard(static_cast<std::byte*>(data) + bytes);
  return {data, bytes, [](void* at, size_t size) {
            Unguard(static_cast<std::byte*>(at) + size);
            munmap(at, size + kGuardBytes);
          }};
}

void CpuOps::CopyToDevice(const void* host, size_t bytes, void* device, Stream) {
  if (bytes > 0) std::memcpy(device, host, bytes);  // of nothing, the pointers may be null
}

void CpuOps::CopyToHost(const void* device, size_t bytes, void* host, Stream) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

int64_t CpuOps::WorkspaceBytes(const Workload& load) const {
  const int64_t losses = load.shape.heads_per_slot() * static_cast<int64_t>(sizeof(HeadLoss));
  return load.max_rows * ((load.hidden_size + 2 * load.intermediate_size) *
                              static_cast<int64_t>(SizeOf(residual_dtype_)) +
                          losses);
}

std::unique_ptr<PackedWeight> CpuOps::Pack(const MatrixView& weight) { return gemm_->Pack(weight); }

std::unique_ptr<PackedWeight> CpuOps::PackRounded(const MatrixView& weight, int64_t rounded_rows,
                                                  WeightFormat format) {
  if (format != WeightFormat::kE4M3) {
    FOX_CHECK(residual_dtype_ == DType::kF32);
    return block_gemm_.Pack(weight, rounded_rows, format);
  }
  std::vector<float> values(static_cast<size_t>(weight.rows * weight.cols));
  for (int64_t n = 0; n < weight.rows; ++n) {
    float* row = values.data() + n * weight.cols;
    LoadElements(weight, n, row);
    if (n < rounded_rows) RoundRow(format, row, weight.cols);
  }
  return Pack({values.data(), DType::kF32, weight.rows, weight.cols, weight.cols});
}

bool CpuHasBf16() {
#ifdef FOX_ONEDNN
  return OneDnnHasBf16();
#else
  return false;
#endif
}

}  // namespace fox
