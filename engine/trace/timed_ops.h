// TimedOps: an Ops that forwards every call to another one and brackets it with the clock that it
// is given, for traces.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/interface/ops.h"

namespace fox {

// Brackets one operation after another.
class OpClock {
 public:
  virtual ~OpClock() = default;
  virtual void Start() = 0;
  // `operation`: its name in a trace, of static life.
  virtual void Stop(const char* operation) = 0;
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
  void CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) override {
    Timed("copy", [&] { ops_->CopyToDevice(host, bytes, device, stream); });
  }
  void CopyToHost(const void* device, size_t bytes, void* host, Stream stream) override {
    Timed("copy", [&] { ops_->CopyToHost(device, bytes, host, stream); });
  }
  DeviceQueue* queue() override { return ops_->queue(); }
  std::optional<std::string> Unsupported(const Workload& load) const override {
    return ops_->Unsupported(load);
  }
  int64_t WorkspaceBytes(const Workload& load) const override { return ops_->WorkspaceBytes(load); }
  void Reserve(const Workload& load) override { ops_->Reserve(load); }
  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override {
    return ops_->Pack(weight);
  }
  std::unique_ptr<PackedWeight> PackRounded(const MatrixView& weight, int64_t rounded) override {
    return ops_->PackRounded(weight, rounded);
  }
  void BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) override {
    Timed("append", [&] { ops_->BeginStep(batch, kv, stream); });
  }
  void Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
             Stream stream) override {
    Timed("embed", [&] { ops_->Embed(batch, table, out, stream); });
  }
  void GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                  Stream stream) override {
    Timed("gather_rows", [&] { ops_->GatherRows(in, rows, out, stream); });
  }
  void Linear(const LinearParams& params, Stream stream) override {
    Timed("linear", [&] { ops_->Linear(params, stream); });
  }
  void Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
              Stream stream) override {
    Timed("append", [&] { ops_->Append(batch, params, kv, stream); });
  }
  void Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                 Stream stream) override {
    Timed("attention", [&] { ops_->Attention(batch, params, kv, stream); });
  }
  void Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
             Stream stream) override {
    Timed("evict", [&] { ops_->Evict(batch, params, kv, stream); });
  }
  void Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) override {
    Timed("evict", [&] { ops_->Release(slots, count, kv, stream); });
  }
  bool shares_pages() const override { return ops_->shares_pages(); }
  void Share(int32_t from, int32_t to, const PagedKv& kv, Stream stream) override {
    Timed("evict", [&] { ops_->Share(from, to, kv, stream); });
  }
  bool swaps() const override { return ops_->swaps(); }
  void SwapOut(int32_t slot, const HostSlot& to, const PagedKv& kv, Stream stream) override {
    Timed("copy", [&] { ops_->SwapOut(slot, to, kv, stream); });
  }
  void SwapIn(const HostSlot& from, int32_t slot, const PagedKv& kv, Stream stream) override {
    Timed("copy", [&] { ops_->SwapIn(from, slot, kv, stream); });
  }
  void SetPenaltyState(const PenaltyStateParams& params, Stream stream) override {
    Timed("sample", [&] { ops_->SetPenaltyState(params, stream); });
  }
  void Sample(const SampleParams& params, Stream stream) override {
    Timed("sample", [&] { ops_->Sample(params, stream); });
  }

 private:
  template <typename Call>
  void Timed(const char* operation, const Call& call) {
    if (clock_ == nullptr) return call();
    clock_->Start();
    call();
    clock_->Stop(operation);
  }

  std::unique_ptr<Ops> ops_;
  const std::shared_ptr<OpClock> clock_;
};

}  // namespace fox
