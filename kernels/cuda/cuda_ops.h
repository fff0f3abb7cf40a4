// CudaOps: the CUDA backend on one NVIDIA GPU, the first visible one (compute capability 8.0 or
// later; Hopper's own attention kernel is chosen at run time). Weights, pages and
// activations are bf16; the residual stream and logits float32. Operations follow each other on
// queue()->stream(), for which a null Stream stands, too. Beside prompts, attention of the decode
// rows runs on a stream of its own (beside_stream.h), and begins when Append has written the rows'
// keys. If another operation comes between Append and Attention, attention waits for that
// operation, too. Work that is no operation (DeviceQueue::CopyPinned, a Graph) must not come
// between them: attention would not wait for such work.
//
// A device error is kept: later calls do nothing, queue()->error() tells. Read step_schedule.h
// next.
#pragma once

#include <memory>
#include <string>

#include "kernels/interface/ops.h"

namespace fox {

struct CudaState;

struct CudaOptions {
  bool portable = false;  // the sm_80 attention kernel even on Hopper (tests)
  bool overlap = true;    // false: no kernel starts before the one before it has ended (tests)
};

class CudaOps : public Ops {
 public:
  // Null and a line in `error` when there is no usable device.
  static std::unique_ptr<CudaOps> Create(const CudaOptions& options, std::string* error);
  ~CudaOps() override;

  std::string Description() const override;
  DType ActivationDType(DType residual_dtype) const override;
  Buffer Allocate(size_t bytes) override;
  void CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) override;
  void CopyToHost(const void* device, size_t bytes, void* host, Stream stream) override;
  DeviceQueue* queue() override;
  std::optional<std::string> Unsupported(const Workload& load) const override;
  int64_t WorkspaceBytes(const Workload& load) const override;
  void Reserve(const Workload& load) override;
  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override;
  std::unique_ptr<PackedWeight> PackRounded(const MatrixView& weight, int64_t rounded_rows,
                                            WeightFormat format) override;
  void BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) override;
  void Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
             Stream stream) override;
  void GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                  Stream stream) override;
  void Linear(const LinearParams& params, Stream stream) override;
  void Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
              Stream stream) override;
  void Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                 Stream stream) override;
  void Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
             Stream stream) override;
  void Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) override;
  void Share(int32_t from, int32_t to, const PagedKv& kv, Stream stream) override;
  void SaveSlot(int32_t slot, const SlotImage& to, const PagedKv& kv, Stream stream) override;
  void LoadSlot(const SlotImage& from, int32_t slot, const PagedKv& kv, Stream stream) override;
  void SetPenaltyState(const PenaltyStateParams& params, Stream stream) override;
  void Sample(const SampleParams& params, Stream stream) override;
  void Score(const ScoreParams& params, Stream stream) override;

  // For benchmarks of single kernels: the plan of the last step, and the stream.
  CudaState& state() { return *state_; }

 private:
  explicit CudaOps(std::unique_ptr<CudaState> state);
  Buffer PackBf16(const MatrixView& weight);
  std::unique_ptr<CudaState> state_;
};

}  // namespace fox
