// ForwardingOps: an Ops that forwards every call to another one. Tests override the calls that they
// count or change.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/interface/ops.h"

namespace fox {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}

  std::string Description() const override { return ops_->Description(); }
  DType ActivationDType(DType residual_dtype) const override {
    return ops_->ActivationDType(residual_dtype);
  }
  Buffer Allocate(size_t bytes) override { return ops_->Allocate(bytes); }
  void CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) override {
    ops_->CopyToDevice(host, bytes, device, stream);
  }
  void CopyToHost(const void* device, size_t bytes, void* host, Stream stream) override {
    ops_->CopyToHost(device, bytes, host, stream);
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
  std::unique_ptr<PackedWeight> PackRounded(const MatrixView& weight, int64_t rounded,
                                            WeightFormat format) override {
    return ops_->PackRounded(weight, rounded, format);
  }
  void BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) override {
    ops_->BeginStep(batch, kv, stream);
  }
  void Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
             Stream stream) override {
    ops_->Embed(batch, table, out, stream);
  }
  void Embed(const BatchView& batch, const PackedWeight& table, const MatrixView& out,
             Stream stream) override {
    ops_->Embed(batch, table, out, stream);
  }
  void GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                  Stream stream) override {
    ops_->GatherRows(in, rows, out, stream);
  }
  void Linear(const LinearParams& params, Stream stream) override { ops_->Linear(params, stream); }
  void Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
              Stream stream) override {
    ops_->Append(batch, params, kv, stream);
  }
  void Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                 Stream stream) override {
    ops_->Attention(batch, params, kv, stream);
  }
  void Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
             Stream stream) override {
    ops_->Evict(batch, params, kv, stream);
  }
  void Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) override {
    ops_->Release(slots, count, kv, stream);
  }
  void Share(int32_t from, int32_t to, const PagedKv& kv, Stream stream) override {
    ops_->Share(from, to, kv, stream);
  }
  void SaveSlot(int32_t slot, const SlotImage& to, const PagedKv& kv, Stream stream) override {
    ops_->SaveSlot(slot, to, kv, stream);
  }
  void LoadSlot(const SlotImage& from, int32_t slot, const PagedKv& kv, Stream stream) override {
    ops_->LoadSlot(from, slot, kv, stream);
  }
  void SetPenaltyState(const PenaltyStateParams& params, Stream stream) override {
    ops_->SetPenaltyState(params, stream);
  }
  void Sample(const SampleParams& params, Stream stream) override { ops_->Sample(params, stream); }
  void Score(const ScoreParams& params, Stream stream) override { ops_->Score(params, stream); }

 private:
  std::unique_ptr<Ops> ops_;
};

}  // namespace fox
