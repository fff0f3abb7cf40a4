// TimedOps: an Ops that forwards every call to another one and brackets it with the clock that it
// is given, for traces.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/ops.h"

namespace fox {

enum class OpKind {
  kLinear,
  kAttention,
  kAppend,
  kEvict,
  kEmbed,
  kGatherRows,
  kSample,
  kCopy,
  kCount
};
inline constexpr size_t kOpKinds = static_cast<size_t>(OpKind::kCount);
const char* NameOf(OpKind kind);

// Brackets one operation after another.
class OpClock {
 public:
  virtual ~OpClock() = default;
  virtual void Start() = 0;
  virtual void Stop(OpKind kind) = 0;
};

class TimedOps : public Ops {
 public:
  // `clock` may be null: nothing is timed.
  TimedOps(std::unique_ptr<Ops> ops, std::shared_ptr<OpClock> clock)
      : ops_(std::move(ops)), clock_(std::move(clock)) {}

  std::string Description() const override { return ops_->Description(); }
  DType ActivationDType(DType residual_dtype) const override {
    return ops_->ActivationDType(residual_dtype);
  }
  Buffer Allocate(size_t bytes) override { return ops_->Allocate(bytes); }
  void CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) override;
  void CopyToHost(const void* device, size_t bytes, void* host, Stream stream) override;
  DeviceQueue* queue() override { return ops_->queue(); }
  std::optional<std::string> Unsupported(const Workload& load) const override {
    return ops_->Unsupported(load);
  }
  int64_t WorkspaceBytes(const Workload& load) const override { return ops_->WorkspaceBytes(load); }
  void Reserve(const Workload& load) override { ops_->Reserve(load); }
  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override;
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
  bool shares_pages() const override { return ops_->shares_pages(); }
  void Share(int32_t from, int32_t to, const PagedKv& kv, Stream stream) override;
  bool swaps() const override { return ops_->swaps(); }
  void SwapOut(int32_t slot, const HostSlot& to, const PagedKv& kv, Stream stream) override;
  void SwapIn(const HostSlot& from, int32_t slot, const PagedKv& kv, Stream stream) override;
  void SetPenaltyState(const PenaltyStateParams& params, Stream stream) override;
  void Sample(const SampleParams& params, Stream stream) override;

 private:
  template <typename Call>
  void Timed(OpKind kind, const Call& call) {
    if (clock_ == nullptr) return call();
    clock_->Start();
    call();
    clock_->Stop(kind);
  }

  std::unique_ptr<Ops> ops_;
  const std::shared_ptr<OpClock> clock_;
};

}  // namespace fox
