// TimedOps: an Ops that forwards every call to another one and adds up the seconds each kind of
// operation took. Right for backends whose calls return when the work is done: the CPU's.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace fox {

enum class OpKind {
  kLinear,
  kAttention,
  kAppend,
  kEvict,
  kRmsNorm,
  kOutputGate,
  kGatedAct,
  kEmbed,
  kGatherRows,
  kCopy,
  kCount
};
inline constexpr size_t kOpKinds = static_cast<size_t>(OpKind::kCount);
const char* NameOf(OpKind kind);

// Seconds by kind of operation.
struct OpSeconds {
  std::array<double, kOpKinds> seconds{};
  double& operator[](OpKind kind) { return seconds[static_cast<size_t>(kind)]; }
  double operator[](OpKind kind) const { return seconds[static_cast<size_t>(kind)]; }
};

class TimedOps : public Ops {
 public:
  // `seconds` must outlive the operations.
  TimedOps(std::unique_ptr<Ops> ops, OpSeconds* seconds)
      : ops_(std::move(ops)), seconds_(seconds) {}

  std::string Description() const override { return ops_->Description(); }
  Buffer Allocate(size_t bytes) override { return ops_->Allocate(bytes); }
  void CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) override;
  void CopyToHost(const void* device, size_t bytes, void* host, Stream stream) override;
  std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) override;
  void Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
             Stream stream) override;
  void GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                  Stream stream) override;
  void RmsNorm(const MatrixView& in, const void* weight, double eps, const MatrixView& out,
               Stream stream) override;
  void Linear(const MatrixView& in, const PackedWeight& weight, const void* bias, bool accumulate,
              const MatrixView& out, Stream stream) override;
  void Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
              Stream stream) override;
  void Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                 Stream stream) override;
  void Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
             Stream stream) override;
  void Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) override;
  void OutputGate(const MatrixView& o, int head_dim, const void* norm, double eps,
                  const MatrixView& gate, bool silu, Stream stream) override;
  void GatedAct(const MatrixView& gate_up, bool silu, const MatrixView& out,
                Stream stream) override;

 private:
  template <typename Call>
  void Timed(OpKind kind, const Call& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    (*seconds_)[kind] += elapsed.count();
  }

  std::unique_ptr<Ops> ops_;
  OpSeconds* seconds_;
};

}  // namespace fox
