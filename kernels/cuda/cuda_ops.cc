// From Ops to kernels: which kernel runs for which batch. See cuda_ops.h.
#include "kernels/cuda/cuda_ops.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/cuda/append.h"
#include "kernels/cuda/attention/decode.h"
#include "kernels/cuda/attention/prefill.h"
#include "kernels/cuda/attention/prune_boundary.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/cuda/draw.h"
#include "kernels/cuda/paging.h"
#include "kernels/cuda/row_ops.h"

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

Buffer DeviceBuffer(cuda::Health& health, size_t bytes, cudaStream_t stream) {
  void* data = nullptr;
  if (bytes == 0 || !health.ok() || !health.Check(cudaMalloc(&data, bytes), "allocate memory")) {
    return {};
  }
  health.Check(cudaMemsetAsync(data, 0, bytes, stream), "clear memory");
  return {data, bytes, [](void* at, size_t) { cudaFree(at); }};
}

// Pages of one item of decode attention: few enough for parallelism, so many that the longest
// sequence needs no more than a few hundred partial results.
int ItemPages(int max_pages) {
  int pages = cuda::kMinItemPages;
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
  state->hopper = properties.major == 9 && !options.portable;
  if (!state->health.ok()) {
    *error = state->health.text();
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

DType CudaOps::NarrowDType(DType) const { return DType::kBF16; }

Buffer CudaOps::Allocate(size_t bytes) {
  return DeviceBuffer(state_->health, bytes, state_->queue.cuda_stream());
}

DeviceQueue* CudaOps::queue() { return &state_->queue; }

void CudaOps::CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) {
  if (bytes == 0 || !state_->health.ok()) return;
  state_->health.Check(
      cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, state_->On(stream)),
      "copy to the device");
}

void CudaOps::CopyToHost(const void* device, size_t bytes, void* host, Stream stream) {
  if (bytes == 0 || !state_->health.ok()) return;
  const cudaStream_t on = state_->On(stream);
  state_->health.Check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on),
                       "copy from the device");
  state_->health.Check(cudaStreamSynchronize(on), "wait for the device");
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
  cuda::StepWork& work = state_->work;
  work.max_blocks = static_cast<int>(max_rows / kPageTokens + 2 * max_seqs);
  work.max_tiles = static_cast<int>(max_rows / cuda::kTileRows + 2 * max_seqs);
  work.max_pairs = max_seqs * shape.q_heads;
  work.item_pages = ItemPages(shape.max_pages);
  // Every pair's groups, but no more than the pool has pages for (and two cut ones a pair).
  const int64_t by_length =
      static_cast<int64_t>(work.max_pairs) * (shape.max_pages / work.item_pages + 1);
  const int64_t by_pool = static_cast<int64_t>(shape.group()) * shape.num_pages / work.item_pages +
                          2 * static_cast<int64_t>(work.max_pairs);
  work.max_items = static_cast<int>(std::min(by_length, by_pool));
  take(work.blocks, work.max_blocks);
  take(work.num_blocks, 1);
  take(work.tiles, work.max_tiles);
  take(work.num_tiles, 1);
  take(work.boundary, static_cast<int64_t>(shape.q_heads) * work.max_tiles);
  take(work.tile_counter, 1);
  take(work.item_begin, static_cast<int64_t>(shape.layers) * (work.max_pairs + 1));
  take(state_->windows, work.max_pairs);
  take(work.partial, static_cast<int64_t>(work.max_items) * (shape.head_dim + 2));
  take(work.ticket, work.max_pairs);
  take(work.fold, static_cast<int64_t>(work.max_blocks) * shape.q_heads * (shape.head_dim + 4));
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
  if (state_->health.ok()) {
    const MatrixView from{wide.data(), DType::kF32, weight.rows, weight.cols, weight.cols};
    const MatrixView to{data.data(), DType::kBF16, weight.rows, weight.cols, weight.cols};
    state_->health.Check(cuda::TransformRows(from, {}, to, stream), "convert a weight");
    // The wide copy and the caller's memory go away now.
    state_->health.Check(cudaStreamSynchronize(stream), "convert a weight");
  }
  return std::make_unique<CudaWeight>(weight.rows, weight.cols, std::move(data));
}

void CudaOps::BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) {
  if (!state_->health.ok()) return;
  FOX_CHECK(batch.num_seqs * kv.shape.q_heads <= state_->work.max_pairs);
  FOX_CHECK(State::MaxTiles(batch) <= state_->work.max_tiles);
  state_->health.Check(cuda::BeginStep(batch, kv, state_->work, state_->On(stream)),
                       "begin a step");
}

void CudaOps::Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                    Stream stream) {
  if (!state_->health.ok()) return;
  state_->health.Check(cuda::Embed(batch, table, out, state_->On(stream)), "embed");
}

void CudaOps::GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                         Stream stream) {
  if (!state_->health.ok() || out.rows == 0) return;
  state_->health.Check(cuda::GatherRows(in, rows, out, state_->On(stream)), "gather rows");
}

void CudaOps::Linear(const MatrixView& in, const RowTransform& transform,
                     const PackedWeight& weight, const void* bias, bool accumulate,
                     const MatrixView& out, Stream stream) {
  if (!state_->health.ok() || in.rows == 0) return;
  const cuda::DeviceWeight view = static_cast<const CudaWeight&>(weight).view();
  state_->health.Check(state_->linear.Run(in, transform, view, static_cast<const float*>(bias),
                                          accumulate, out, state_->On(stream)),
                       "multiply");
  if (state_->linear.Settles(in, transform, view)) state_->settled_output = out.data;
}

void CudaOps::Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                     Stream stream) {
  if (!state_->health.ok()) return;
  const bool settled = state_->settled_output == params.projection.data;
  state_->health.Check(cuda::Append(batch, params, kv, state_->work, settled, state_->On(stream)),
                       "append");
}

void CudaOps::Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                        Stream stream) {
  if (!state_->health.ok()) return;
  const cudaStream_t on = state_->On(stream);
  if (batch.num_rows > batch.num_seqs) {
    const int max_tiles = State::MaxTiles(batch);
    const bool hopper = state_->hopper && kv.shape.head_dim >= 32;
    state_->health.Check(cuda::PruneBoundaries(batch, params, kv, state_->work, max_tiles, on),
                         "find boundaries");
    state_->health.Check((hopper ? cuda::PrefillSm90 : cuda::PrefillSm80)(
                             batch, params, kv, state_->work, max_tiles, on),
                         "attend");
    if (batch.num_seqs == 1) return;
  }
  cuda::StepWork work = state_->work;
  if (cuda::MeasuresQueries(params)) {
    work.window = state_->windows;
    state_->health.Check(cuda::FindDecodeWindows(batch, params, kv, work, on), "find windows");
    state_->health.Check(cuda::PlanItems(batch, kv, work, params.layer, on), "plan items");
  }
  state_->health.Check(cuda::DecodeAttention(batch, params, kv, work, on), "attend");
}

void CudaOps::Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                    Stream stream) {
  if (!state_->health.ok() || params.acp == AcpMode::kOff) return;
  state_->health.Check(cuda::Evict(batch, params, kv, state_->On(stream)), "evict");
}

void CudaOps::Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) {
  for (int done = 0; done < count && state_->health.ok(); done += cuda::kMaxReleased) {
    const int some = std::min(count - done, cuda::kMaxReleased);
    state_->health.Check(cuda::Release(slots + done, some, kv, state_->On(stream)), "release");
  }
}

void CudaOps::SetTokenStates(const TokenStatesParams& params, Stream stream) {
  if (!state_->health.ok()) return;
  state_->health.Check(cuda::SetTokenStates(params, state_->On(stream)), "set token states");
}

void CudaOps::Draw(const DrawParams& params, Stream stream) {
  if (!state_->health.ok()) return;
  state_->health.Check(cuda::Draw(params, state_->On(stream)), "draw");
}

}  // namespace fox
