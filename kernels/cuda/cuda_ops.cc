// From Ops to kernels: which kernel runs for which batch. See cuda_ops.h.
#include "kernels/cuda/cuda_ops.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/attention/decode/decode.h"
#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/attention/prune_boundary.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/cuda/linear/row_ops.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/sampling/sample.h"

namespace fox {
namespace {

constexpr int64_t kWeightRowMultiple = 16;

class CudaWeight : public PackedWeight {
 public:
  CudaWeight(int64_t out, int64_t in, Buffer data)
      : PackedWeight(out, in, static_cast<size_t>(out * in) * SizeOf(DType::kBF16)),
        data_(std::move(data)) {}
  cuda::DeviceWeight view() const { return {data_.data(), out(), in()}; }

 private:
  Buffer data_;
};

Buffer DeviceBuffer(cuda::DeviceError& device_error, size_t bytes, cudaStream_t stream) {
  void* data = nullptr;
  if (bytes == 0 || !device_error.ok() ||
      !device_error.Check(cudaMalloc(&data, bytes), "allocate memory")) {
    return {};
  }
  device_error.Check(cudaMemsetAsync(data, 0, bytes, stream), "clear memory");
  return {data, bytes, [](void* at, size_t) { cudaFree(at); }};
}

// Pages of one item of decode attention: few enough for parallelism, so many that the longest
// sequence needs no more than a few hundred partial results.
int PagesPerSplit(int max_pages) {
  int pages = cuda::kMinPagesPerSplit;
  while (pages * 256 < max_pages) pages *= 2;
  return pages;
}

}  // namespace

std::unique_ptr<CudaOps> CudaOps::Create(const CudaOptions& options, std::string* error) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    *error = cudaGetErrorString(status);
    return nullptr;
  }
  cudaDeviceProp properties{};
  if (count == 0 || cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    *error = "no CUDA device is visible";
    return nullptr;
  }
  if (properties.major < 8) {
    *error = std::string(properties.name) + " is older than compute capability 8.0";
    return nullptr;
  }
  auto state = std::make_unique<State>(options);
  state->name = properties.name;
  state->hopper = properties.major == 9 && !options.portable && cuda::HasPrefillSm90();
  if (!state->device_error.ok()) {
    *error = state->device_error.text();
    return nullptr;
  }
  return std::unique_ptr<CudaOps>(new CudaOps(std::move(state)));
}

CudaOps::CudaOps(std::unique_ptr<State> state) : state_(std::move(state)) {}

CudaOps::~CudaOps() { cudaStreamSynchronize(state_->queue.cuda_stream()); }

std::string CudaOps::Description() const {
  return "cuda (" + state_->name + ", cuBLASLt bf16, attention " +
         (state_->hopper ? "sm_90a" : "sm_80") + ")";
}

DType CudaOps::ActivationDType(DType) const { return DType::kBF16; }

Buffer CudaOps::Allocate(size_t bytes) {
  return DeviceBuffer(state_->device_error, bytes, state_->queue.cuda_stream());
}

DeviceQueue* CudaOps::queue() { return &state_->queue; }

void CudaOps::CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) {
  if (bytes == 0 || !state_->device_error.ok()) return;
  state_->device_error.Check(
      cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, state_->On(stream)),
      "copy to the device");
}

void CudaOps::CopyToHost(const void* device, size_t bytes, void* host, Stream stream) {
  if (bytes == 0 || !state_->device_error.ok()) return;
  const cudaStream_t on = state_->On(stream);
  state_->device_error.Check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on),
                             "copy from the device");
  state_->device_error.Check(cudaStreamSynchronize(on), "wait for the device");
}

void CudaOps::Reserve(int64_t max_rows, int max_seqs, const PagedKvShape& shape) {
  FOX_CHECK(shape.dtype == DType::kBF16);
  state_->buffers.clear();
  const auto take = [this](auto*& pointer, int64_t count) {
    const size_t size = sizeof(*pointer);
    state_->buffers.push_back(Allocate(static_cast<size_t>(count) * size));
    pointer =
        static_cast<std::remove_reference_t<decltype(pointer)>>(state_->buffers.back().data());
  };
  cuda::StepSchedule& schedule = state_->schedule;
  schedule.max_blocks = static_cast<int>(max_rows / kPageTokens + 2 * max_seqs);
  schedule.max_tiles = static_cast<int>(max_rows / cuda::kTileRows + 2 * max_seqs);
  schedule.max_seq_heads = max_seqs * shape.q_heads;
  schedule.pages_per_split = PagesPerSplit(shape.max_pages);
  // Every pair's groups, but no more than the pool has pages for (and two cut ones a pair).
  const int64_t by_length = static_cast<int64_t>(schedule.max_seq_heads) *
                            (shape.max_pages / schedule.pages_per_split + 1);
  const int64_t by_pool =
      static_cast<int64_t>(shape.group()) * shape.num_pages / schedule.pages_per_split +
      2 * static_cast<int64_t>(schedule.max_seq_heads);
  schedule.max_splits = static_cast<int>(std::min(by_length, by_pool));
  take(schedule.blocks, schedule.max_blocks);
  take(schedule.num_blocks, 1);
  take(schedule.tiles, schedule.max_tiles);
  take(schedule.num_tiles, 1);
  take(schedule.boundary, static_cast<int64_t>(shape.q_heads) * schedule.max_tiles);
  take(schedule.tile_counter, 1);
  take(schedule.split_begin, static_cast<int64_t>(shape.layers) * (schedule.max_seq_heads + 1));
  take(state_->first_visible_pages, schedule.max_seq_heads);
  take(schedule.partial, static_cast<int64_t>(schedule.max_splits) * (shape.head_dim + 2));
  take(schedule.arrival_counter, schedule.max_seq_heads);
  take(schedule.page_sums,
       static_cast<int64_t>(schedule.max_blocks) * shape.q_heads * (shape.head_dim + 4));
}

std::unique_ptr<PackedWeight> CudaOps::Pack(const MatrixView& weight) {
  const int64_t rows =
      (weight.rows + kWeightRowMultiple - 1) / kWeightRowMultiple * kWeightRowMultiple;
  Buffer data = Allocate(static_cast<size_t>(rows * weight.cols) * SizeOf(DType::kBF16));
  FOX_CHECK(weight.dtype == DType::kF32 && weight.row_stride == weight.cols);
  const size_t bytes = static_cast<size_t>(weight.rows * weight.cols) * sizeof(float);
  const Buffer wide = Allocate(bytes);
  CopyToDevice(weight.data, bytes, wide.data(), nullptr);
  const cudaStream_t stream = state_->queue.cuda_stream();
  if (state_->device_error.ok()) {
    const MatrixView from{wide.data(), DType::kF32, weight.rows, weight.cols, weight.cols};
    const MatrixView to{data.data(), DType::kBF16, weight.rows, weight.cols, weight.cols};
    state_->device_error.Check(cuda::TransformRows(from, {}, to, stream), "convert a weight");
    // The wide copy and the caller's memory go away now.
    state_->device_error.Check(cudaStreamSynchronize(stream), "convert a weight");
  }
  return std::make_unique<CudaWeight>(weight.rows, weight.cols, std::move(data));
}

void CudaOps::BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) {
  if (!state_->device_error.ok()) return;
  FOX_CHECK(batch.num_seqs * kv.shape.q_heads <= state_->schedule.max_seq_heads);
  FOX_CHECK(State::MaxTiles(batch) <= state_->schedule.max_tiles);
  state_->device_error.Check(cuda::BeginStep(batch, kv, state_->schedule, state_->On(stream)),
                             "begin a step");
}

void CudaOps::Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                    Stream stream) {
  if (!state_->device_error.ok()) return;
  state_->device_error.Check(cuda::Embed(batch, table, out, state_->On(stream)), "embed");
}

void CudaOps::GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                         Stream stream) {
  if (!state_->device_error.ok() || out.rows == 0) return;
  state_->device_error.Check(cuda::GatherRows(in, rows, out, state_->On(stream)), "gather rows");
}

void CudaOps::Linear(const MatrixView& in, const InputTransform& transform,
                     const PackedWeight& weight, const void* bias, bool accumulate,
                     const MatrixView& out, Stream stream) {
  if (!state_->device_error.ok() || in.rows == 0) return;
  const cuda::DeviceWeight view = static_cast<const CudaWeight&>(weight).view();
  state_->device_error.Check(
      state_->linear.Run(in, transform, view, static_cast<const float*>(bias), accumulate, out,
                         state_->On(stream)),
      "multiply");
  if (state_->linear.Settles(in, transform, view)) state_->drained_output = out.data;
}

void CudaOps::Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                     Stream stream) {
  if (!state_->device_error.ok()) return;
  const bool drained = state_->drained_output == params.projection.data;
  state_->device_error.Check(
      cuda::Append(batch, params, kv, state_->schedule, drained, state_->On(stream)), "append");
}

void CudaOps::Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                        Stream stream) {
  if (!state_->device_error.ok()) return;
  const cudaStream_t on = state_->On(stream);
  if (batch.num_rows > batch.num_seqs) {
    const int max_tiles = State::MaxTiles(batch);
    const bool hopper = state_->hopper && kv.shape.head_dim >= 32;
    state_->device_error.Check(
        cuda::PruneBoundaries(batch, params, kv, state_->schedule, max_tiles, on),
        "find boundaries");
    state_->device_error.Check((hopper ? cuda::PrefillSm90 : cuda::PrefillSm80)(
                                   batch, params, kv, state_->schedule, max_tiles, on),
                               "attend");
    if (batch.num_seqs == 1) return;
  }
  cuda::StepSchedule schedule = state_->schedule;
  if (cuda::UsesPerQueryBound(params)) {
    schedule.first_visible_page = state_->first_visible_pages;
    state_->device_error.Check(cuda::FindFirstVisiblePages(batch, params, kv, schedule, on),
                               "find first_visible_pages");
    state_->device_error.Check(cuda::PlanSplits(batch, kv, schedule, params.layer, on),
                               "plan splits");
  }
  state_->device_error.Check(cuda::DecodeAttention(batch, params, kv, schedule, on), "attend");
}

void CudaOps::Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                    Stream stream) {
  if (!state_->device_error.ok() || params.acp == AcpMode::kOff) return;
  state_->device_error.Check(cuda::Evict(batch, params, kv, state_->On(stream)), "evict");
}

void CudaOps::Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) {
  for (int done = 0; done < count && state_->device_error.ok(); done += cuda::kMaxReleased) {
    const int some = std::min(count - done, cuda::kMaxReleased);
    state_->device_error.Check(cuda::Release(slots + done, some, kv, state_->On(stream)),
                               "release");
  }
}

void CudaOps::SetPenaltyState(const PenaltyStateParams& params, Stream stream) {
  if (!state_->device_error.ok()) return;
  state_->device_error.Check(cuda::SetPenaltyState(params, state_->On(stream)), "set token states");
}

void CudaOps::Sample(const SampleParams& params, Stream stream) {
  if (!state_->device_error.ok()) return;
  state_->device_error.Check(cuda::Sample(params, state_->On(stream)), "sample");
}

}  // namespace fox
