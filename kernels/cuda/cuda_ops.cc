// From Ops to kernels: which kernel runs for which batch. See cuda_ops.h.
#include "kernels/cuda/cuda_ops.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/attention/decode/decode.h"
#include "kernels/cuda/attention/lost_mass.h"
#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/attention/prune_boundary.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/cuda/linear/device_weight.h"
#include "kernels/cuda/linear/row_transforms.h"
#include "kernels/cuda/paging/paging.h"
#include "kernels/cuda/runtime/cluster_room.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/supports.h"
#include "kernels/cuda/sampling/sample.h"

namespace fox {
namespace {

Buffer DeviceBuffer(cuda::DeviceError& device_error, size_t bytes, cudaStream_t stream) {
  void* data = nullptr;
  if (bytes == 0 || !device_error.ok() ||
      !device_error.Check(cudaMalloc(&data, bytes), "allocate memory")) {
    return {};
  }
  device_error.Check(cudaMemsetAsync(data, 0, bytes, stream), "clear memory");
  return {data, bytes, [](void* at, size_t) { cudaFree(at); }};
}

// Attention widens pages of 8 bits in this part of the device's memory, but in no less than
// kLeastWideBytes, some lists at a time: on an H200 four of a million tokens (heads of 64). The
// more lists, the fewer launches.
constexpr int64_t kWideShare = 128, kLeastWideBytes = int64_t{256} << 20;

// Attention of the prefill rows.
cudaError_t Prefill(const CudaState& state, const BatchView& batch, const AttentionParams& params,
                    const PagedKv& kv, cudaStream_t on) {
  const cuda::StepSchedule& schedule = state.schedule;
  const int max_tiles = CudaState::MaxTiles(batch);
  const cudaError_t error = cuda::PruneBoundaries(batch, params, kv, schedule, max_tiles, on);
  if (error != cudaSuccess) return error;
  const bool sm90 = state.hopper && kv.shape.head_dim >= 32;
  const auto attend = sm90 ? cuda::PrefillSm90 : cuda::PrefillSm80;
  if (kv.shape.dtype != DType::kE4M3) return attend(batch, params, kv, schedule, max_tiles, on);
  // As many lists at a time as there is room for, if each has as many pages as one may have.
  cuda::StepSchedule some = schedule;
  cuda::WidePages& wide = some.wide;
  const int64_t most = int64_t{kv.shape.max_pages} * kPageTokens;
  wide.pages = PagesFor(std::min(batch.max_tokens, most));
  wide.first_seq = batch.num_decodes;
  const int lists = (batch.num_seqs - batch.num_decodes) * kv.shape.kv_heads;
  const auto at_once = static_cast<int>(wide.capacity / wide.pages);
  FOX_CHECK(at_once > 0);
  for (; wide.first < lists; wide.first += at_once) {
    wide.end = std::min(lists, wide.first + at_once);
    const cudaError_t widened = cuda::WidenPages(batch, kv, params.layer, some, on);
    if (widened != cudaSuccess) return widened;
    const cudaError_t attended = attend(batch, params, kv, some, max_tiles, on);
    if (attended != cudaSuccess) return attended;
  }
  return cudaSuccess;
}

// Splits over keys: none if no loop is long enough.
template <typename Take>
void ReserveKeySplits(const Workload& load, cuda::StepSchedule& schedule, const Take& take) {
  const PagedKvShape& shape = load.shape;
  const bool splits_keys = cuda::NumKeySplits(0, shape.max_pages / 2, cuda::kMinKeySplitShift,
                                              cuda::kFirstSplitTile) > 1;
  if (!splits_keys) return;
  cuda::KeySplits& splits = schedule.key_splits;
  const int64_t most = cuda::kMaxSplitsPerTile;
  const int64_t head_tiles = static_cast<int64_t>(shape.q_heads) * schedule.max_tiles;
  splits.max_rows = std::min(cuda::kMaxPartialRows, load.max_rows * shape.q_heads * most);
  splits.max_splits = std::min(cuda::kMaxKeySplits, head_tiles * most);
  take(splits.partial_rows, head_tiles);
  take(splits.splits, splits.max_splits);
  take(splits.split_tiles, splits.max_splits);
  take(splits.num_splits, 1);
  take(splits.num_split_tiles, 1);
  take(splits.splits_first, 1);
  take(splits.out, (cuda::kSerialRows + splits.max_rows) * shape.head_dim);
  take(splits.softmax, (cuda::kSerialRows + splits.max_rows) * 2);
  take(splits.stop_at, cuda::kSerialRows + splits.max_rows);
}

}  // namespace

std::unique_ptr<CudaOps> CudaOps::Create(const CudaOptions& options, std::string* error) {
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    *error = cudaGetErrorString(status);
    return nullptr;
  }
  if (properties.major < 8) {
    *error = std::string(properties.name) + " is older than compute capability 8.0";
    return nullptr;
  }
  if (!cuda::FitsLargestCluster()) {
    *error = std::string(properties.name) + " has no room for a cluster of " +
             std::to_string(cuda::kLargestCluster) +
             " thread blocks, which the kernels for Hopper need: use a larger slice of the device";
    return nullptr;
  }
  auto state = std::make_unique<CudaState>(options.overlap);
  state->name = properties.name;
  state->multiprocessors = properties.multiProcessorCount;
  state->wide_bytes =
      std::max(static_cast<int64_t>(properties.totalGlobalMem) / kWideShare, kLeastWideBytes);
  state->hopper = properties.major == 9 && !options.portable && cuda::HasPrefillSm90();
  if (!state->device_error.ok()) {
    *error = state->device_error.text();
    return nullptr;
  }
  return std::unique_ptr<CudaOps>(new CudaOps(std::move(state)));
}

CudaOps::CudaOps(std::unique_ptr<CudaState> state) : state_(std::move(state)) {}

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

std::optional<std::string> CudaOps::Unsupported(const Workload& load) const {
  return cuda::Unsupported(load);
}

void CudaOps::CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) {
  if (bytes == 0) return;
  state_->Enqueue("copy to the device", stream, [&](cudaStream_t on) {
    return cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, on);
  });
}

void CudaOps::CopyToHost(const void* device, size_t bytes, void* host, Stream stream) {
  if (bytes == 0) return;
  state_->Enqueue("copy from the device", stream, [&](cudaStream_t on) {
    const cudaError_t error = cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on);
    return error != cudaSuccess ? error : cudaStreamSynchronize(on);
  });
}

int64_t CudaOps::WorkspaceBytes(const Workload& load) const {
  const PagedKvShape& shape = load.shape;
  const int64_t decode = cuda::MaxDecodeSplits(load.max_seqs, shape) * cuda::HeadsTogether(shape);
  const int64_t prefill = state_->hopper ? cuda::kMaxPartialRows + cuda::kSerialRows : 0;
  const int64_t values =
      decode * cuda::PartialFloats(shape.head_dim) + prefill * (shape.head_dim + 3);
  const int64_t wide =
      cuda::WidePageCapacity(shape, load.max_seqs, state_->wide_bytes) * cuda::WidePageBytes(shape);
  const int64_t row_sums = load.prunes ? 2 * load.max_rows * shape.heads_per_slot() : 0;
  return (values + row_sums) * static_cast<int64_t>(sizeof(float)) + wide +
         state_->linear.WorkspaceBytes(load);
}

void CudaOps::Reserve(const Workload& load) {
  const PagedKvShape& shape = load.shape;
  const int64_t max_rows = load.max_rows;
  const auto max_seqs = static_cast<int>(load.max_seqs);
  FOX_CHECK(shape.dtype == DType::kBF16 || shape.dtype == DType::kE4M3);
  FOX_CHECK(shape.kv_heads > 0 && shape.q_heads % shape.kv_heads == 0);
  FOX_CHECK(max_rows >= 0 && load.max_seqs >= 0 && load.max_seqs <= cuda::kMaxSeqs);
  state_->device_error.Check(state_->linear.Reserve(load), "prepare matrix products");
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
  schedule.max_splits = static_cast<int>(cuda::MaxDecodeSplits(max_seqs, shape));
  take(schedule.blocks, schedule.max_blocks);
  take(schedule.num_blocks, 1);
  take(schedule.tiles, schedule.max_tiles);
  take(schedule.num_tiles, 1);
  take(schedule.boundary, static_cast<int64_t>(shape.q_heads) * schedule.max_tiles);
  take(schedule.tile_counter, 1);
  take(schedule.seq_heads, static_cast<int64_t>(shape.layers) * schedule.max_seq_heads);
  state_->device_error.Check(cuda::DecodeBlocks(shape, &state_->resident_blocks),
                             "ask for blocks of decode attention");
  const int64_t cluster_blocks = int64_t{cuda::kClusterBlocks} * shape.q_heads;
  take(schedule.block_starts,
       shape.layers * std::max<int64_t>(state_->resident_blocks, cluster_blocks));
  take(schedule.partial, static_cast<int64_t>(schedule.max_splits) * cuda::HeadsTogether(shape) *
                             cuda::PartialFloats(shape.head_dim));
  const Buffer& partial = state_->buffers.back();
  state_->device_error.Check(
      cudaMemsetAsync(partial.data(), 0xff, partial.bytes(), state_->queue.cuda_stream()),
      "mark partial results as absent");
  take(schedule.arrival_counter, schedule.max_seq_heads);
  take(schedule.page_sums, static_cast<int64_t>(schedule.max_blocks) * shape.q_heads *
                               (shape.head_dim + cuda::kRecordHeader));
  schedule.max_rows = load.prunes ? max_rows : 0;
  take(schedule.row_sums, schedule.max_rows * shape.heads_per_slot() * 2);
  take(schedule.lost_mass_parts, int64_t{schedule.max_blocks} * cuda::kLostMassParts);
  take(schedule.evicted_before, (max_rows / kPageTokens + max_seqs) * shape.heads_per_slot());
  cuda::WidePages& wide = schedule.wide;
  wide.capacity = cuda::WidePageCapacity(shape, max_seqs, state_->wide_bytes);
  for (void** half : {&wide.keys, &wide.values}) {
    auto* bytes = static_cast<std::byte*>(nullptr);
    take(bytes, wide.capacity * cuda::WidePageBytes(shape) / 2);
    *half = bytes;
  }
  schedule.key_splits = {};
  if (state_->hopper) ReserveKeySplits(load, schedule, take);
}

// In bf16, zeros behind it up to PaddedRows.
Buffer CudaOps::PackBf16(const MatrixView& weight) {
  const int64_t rows = cuda::PaddedRows(weight.rows);
  Buffer data = Allocate(static_cast<size_t>(rows * weight.cols) * SizeOf(DType::kBF16));
  FOX_CHECK(weight.row_stride == weight.cols);
  if (weight.dtype == DType::kBF16) {
    const auto elements = static_cast<size_t>(weight.rows * weight.cols);
    CopyToDevice(weight.data, elements * SizeOf(DType::kBF16), data.data(), nullptr);
    return data;
  }
  FOX_CHECK(weight.dtype == DType::kF32);
  const size_t bytes = static_cast<size_t>(weight.rows * weight.cols) * sizeof(float);
  const Buffer wide = Allocate(bytes);
  CopyToDevice(weight.data, bytes, wide.data(), nullptr);
  const MatrixView from{wide.data(), DType::kF32, weight.rows, weight.cols, weight.cols};
  const MatrixView to{data.data(), DType::kBF16, weight.rows, weight.cols, weight.cols};
  state_->Enqueue("convert a weight", nullptr, [&](cudaStream_t on) {
    const cudaError_t error = cuda::ConvertRows(from, to, on);
    // The wide copy and the caller's memory go away now.
    return error != cudaSuccess ? error : cudaStreamSynchronize(on);
  });
  return data;
}

std::unique_ptr<PackedWeight> CudaOps::Pack(const MatrixView& weight) {
  return std::make_unique<cuda::DeviceWeight>(weight.rows, weight.cols, PackBf16(weight));
}

std::unique_ptr<PackedWeight> CudaOps::PackRounded(const MatrixView& weight, int64_t rounded_rows,
                                                   WeightFormat format) {
  FOX_CHECK(format == WeightFormat::kE4M3);
  FOX_CHECK(rounded_rows >= 0 && rounded_rows <= weight.rows);
  ThreadPool pool(StartThreads());
  const cuda::Fp8Rows host = cuda::EncodeFp8Rows(weight.Rows(0, rounded_rows), pool);
  const auto upload = [&](const auto& values) {
    const size_t bytes = values.size() * sizeof(values[0]);
    Buffer data = Allocate(bytes);
    CopyToDevice(values.data(), bytes, data.data(), nullptr);
    return data;
  };
  cuda::DeviceFp8Rows fp8{rounded_rows, upload(host.codes), upload(host.scales)};
  const int64_t rest = weight.rows - rounded_rows;
  auto packed = std::make_unique<cuda::DeviceWeight>(
      weight.rows, weight.cols, rest > 0 ? PackBf16(weight.Rows(rounded_rows, rest)) : Buffer(),
      std::move(fp8));
  state_->device_error.Check(state_->linear.ReserveWidened(*packed), "prepare a weight");
  return packed;
}

void CudaOps::BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) {
  FOX_CHECK(batch.num_decodes >= 0 && batch.num_decodes <= batch.num_seqs);
  FOX_CHECK(batch.num_seqs * kv.shape.q_heads <= state_->schedule.max_seq_heads);
  FOX_CHECK(CudaState::MaxTiles(batch) <= state_->schedule.max_tiles);
  cuda::StepSchedule& schedule = state_->schedule;
  schedule.by_clusters = batch.small && cuda::DecodeClusterRuns(kv.shape);
  schedule.decode_blocks = schedule.by_clusters
                               ? batch.num_seqs * kv.shape.q_heads * cuda::kClusterBlocks
                               : state_->resident_blocks;
  if (state_->AttendsBeside(batch)) schedule.decode_blocks -= state_->multiprocessors;
  state_->Enqueue("begin a step", stream,
                  [&](cudaStream_t on) { return cuda::BeginStep(batch, kv, schedule, on); });
}

void CudaOps::Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                    Stream stream) {
  state_->linear.Forget(out.data);
  state_->Enqueue("embed", stream,
                  [&](cudaStream_t on) { return cuda::Embed(batch, table, out, on); });
}

void CudaOps::GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                         Stream stream) {
  if (out.rows == 0) return;
  state_->linear.Forget(out.data);
  state_->Enqueue("gather rows", stream,
                  [&](cudaStream_t on) { return cuda::GatherRows(in, rows, out, on); });
}

void CudaOps::Linear(const LinearParams& params, Stream stream) {
  if (params.in.rows == 0) return;
  const UnfinishedWrites before = state_->unfinished;
  state_->Enqueue("multiply", stream,
                  [&](cudaStream_t on) { return state_->linear.Run(params, on); });
  if (params.decode_rows < params.in.rows) return;
  const bool triggers_late = state_->linear.triggers_late();
  state_->unfinished = (triggers_late ? UnfinishedWrites::None() : before).With(params.out.data);
}

// Append writes a layer's running state and the rows' own pages in it; here the layer's first sum
// of log gates represents both, and `keys` the lists and all other pages.
void CudaOps::Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                     Stream stream) {
  const UnfinishedWrites before = state_->unfinished;
  const void* state = kv.cum_log_f + kv.HeadIndex(0, params.layer, 0);
  // Behind a projection that triggered early, attention has to wait for this kernel's wait: its
  // blocks would otherwise stand in the way of the products before.
  const bool reads_early = !before.MayTouch(state) && !before.MayTouch(kv.keys);
  const bool triggers_early = reads_early && state_->linear.triggers_late();
  cuda::BesideStream* beside = state_->AttendsBeside(batch) ? &state_->beside : nullptr;
  state_->Enqueue("append", stream, [&](cudaStream_t on) {
    return cuda::Append(batch, params, kv, state_->schedule,
                        {reads_early, triggers_early, cuda::DecodeCarveout(batch)}, on, beside);
  });
  if (!batch.all_decodes()) return;
  state_->unfinished =
      (triggers_early ? before : UnfinishedWrites::None()).With(params.projection.data).With(state);
}

void CudaOps::Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                        Stream stream) {
  FOX_CHECK(batch.num_rows <= params.q.rows && batch.num_rows <= params.out.rows);
  const UnfinishedWrites before = state_->unfinished;
  const bool reads_early = batch.all_decodes() && !before.MayTouch(kv.keys);
  const auto decode = [&](cudaStream_t on) {
    return cuda::DecodeAttention(batch, params, kv, state_->schedule, reads_early, on);
  };
  const bool beside = state_->AttendsBeside(batch);
  if (beside) {
    state_->Enqueue("attend, single rows", stream,
                    [&](cudaStream_t on) { return state_->beside.Run(on, decode); });
  }
  if (!batch.all_decodes()) {
    state_->Enqueue("attend, chunks", stream,
                    [&](cudaStream_t on) { return Prefill(*state_, batch, params, kv, on); });
  }
  if (beside) {
    state_->Enqueue("wait for single rows", stream,
                    [&](cudaStream_t on) { return state_->beside.Join(on); });
    state_->joined = true;
  } else if (batch.num_decodes > 0) {
    state_->Enqueue("attend, single rows", stream, decode);
  }
  if (batch.all_decodes()) state_->unfinished = before.With(params.out.data);
}

void CudaOps::Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                    Stream stream) {
  if (params.acp == AcpMode::kOff) return;
  state_->Enqueue("evict", stream, [&](cudaStream_t on) {
    return cuda::Evict(batch, params, kv, state_->schedule, on);
  });
  if (params.lost_mass == nullptr) return;
  state_->Enqueue("sum lost mass", stream, [&](cudaStream_t on) {
    return cuda::SumLostMass(batch, params, kv, state_->schedule, on);
  });
}

void CudaOps::Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) {
  FOX_CHECK(count >= 0 && count <= kv.shape.max_slots);
  for (int done = 0; done < count; done += cuda::kMaxReleased) {
    const int some = std::min(count - done, cuda::kMaxReleased);
    state_->Enqueue("release", stream,
                    [&](cudaStream_t on) { return cuda::Release(slots + done, some, kv, on); });
  }
}

void CudaOps::Share(int32_t from, int32_t to, const PagedKv& kv, Stream stream) {
  FOX_CHECK(from != to);
  state_->Enqueue("share", stream, [&](cudaStream_t on) { return cuda::Share(from, to, kv, on); });
}

void CudaOps::SaveSlot(int32_t slot, const SlotImage& to, const PagedKv& kv, Stream stream) {
  state_->Enqueue("save slot", stream,
                  [&](cudaStream_t on) { return cuda::SaveSlot(slot, to, kv, on); });
}

void CudaOps::LoadSlot(const SlotImage& from, int32_t slot, const PagedKv& kv, Stream stream) {
  state_->Enqueue("load slot", stream,
                  [&](cudaStream_t on) { return cuda::LoadSlot(from, slot, kv, on); });
}

void CudaOps::SetPenaltyState(const PenaltyStateParams& params, Stream stream) {
  state_->Enqueue("set penalty state", stream,
                  [&](cudaStream_t on) { return cuda::SetPenaltyState(params, on); });
}

void CudaOps::Sample(const SampleParams& params, Stream stream) {
  state_->Enqueue("sample", stream, [&](cudaStream_t on) { return cuda::Sample(params, on); });
}

void CudaOps::Score(const ScoreParams& params, Stream stream) {
  state_->Enqueue("score", stream, [&](cudaStream_t on) { return cuda::Score(params, on); });
}

}  // namespace fox
