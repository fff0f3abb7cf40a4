// CpuOps: the CPU backend; embedded default, and the oracle of every kernel test. Parallel over
// a pool of its own; the stream is ignored. The operations live in append.cc, attention.cc,
// evict.cc, score.cc, share.cc, slot_image.cc and elementwise.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/mass_audit.h"
#include "kernels/interface/ops.h"

namespace fox {

struct CpuOptions {
  DType dtype = DType::kF32;  // of linear weights: f64, f32, bf16
  bool plain_gemm = false;    // row-independent matrix products; always so for f64
  int threads = 0;            // 0: one per core that the process may use
  std::shared_ptr<MassAudit> audit = MakeDebugAudit();  // null: none
};

// The bound on the mass that a row of a head lost, and 1 / |o| of the row's output before its norm,
// as Attention leaves them for Evict.
struct HeadLoss {
  double log_mass = kNoMass, log_inverse_norm = 0;
};

class CpuOps : public Ops {
 public:
  explicit CpuOps(const CpuOptions& options);

  std::string Description() const override;
  DType ActivationDType(DType residual_dtype) const override { return residual_dtype; }
  Buffer Allocate(size_t bytes) override;
  void CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) override;
  void CopyToHost(const void* device, size_t bytes, void* host, Stream stream) override;
  int64_t WorkspaceBytes(const Workload& load) const override;
  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override;
  // Blocks are not for f64.
  std::unique_ptr<PackedWeight> PackRounded(const MatrixView& weight, int64_t rounded_rows,
                                            WeightFormat format) override;
  void BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) override;
  void Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
             Stream stream) override;
  void Embed(const BatchView& batch, const PackedWeight& table, const MatrixView& out,
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
  void Score(const ScoreParams& params, Stream stream) override;

 private:
  LostMass LostMassOf(const BatchView& batch, const EvictParams& params, const PagedKvShape& shape,
                      int seq) const;

  const DType residual_dtype_;
  ThreadPool pool_;
  std::unique_ptr<Gemm> gemm_;
  BlockGemm block_gemm_;
  Buffer scratch_;                // rows on their way into or out of a product
  std::vector<HeadLoss> losses_;  // [layers, num_rows, q_heads] of the step
  std::shared_ptr<MassAudit> audit_;
};

// Whether this machine computes bf16 weights at bf16 speed; if not, f32 is the better choice.
bool CpuHasBf16();

}  // namespace fox
