// Forwarding, one line an operation. See timed_ops.h.
#include "engine/trace/timed_ops.h"

#include <array>

namespace fox {
const char* NameOf(OpKind kind) {
  static constexpr std::array<const char*, kOpKinds> kNames = {
      "linear", "attention", "append", "evict", "embed", "gather_rows", "sample", "copy"};
  return kNames[static_cast<size_t>(kind)];
}

void TimedOps::CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) {
  Timed(OpKind::kCopy, [&] { ops_->CopyToDevice(host, bytes, device, stream); });
}

void TimedOps::CopyToHost(const void* device, size_t bytes, void* host, Stream stream) {
  Timed(OpKind::kCopy, [&] { ops_->CopyToHost(device, bytes, host, stream); });
}

std::unique_ptr<PackedWeight> TimedOps::Pack(const MatrixView& weight) {
  return ops_->Pack(weight);
}

void TimedOps::Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                     Stream stream) {
  Timed(OpKind::kEmbed, [&] { ops_->Embed(batch, table, out, stream); });
}

void TimedOps::GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                          Stream stream) {
  Timed(OpKind::kGatherRows, [&] { ops_->GatherRows(in, rows, out, stream); });
}

void TimedOps::Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      Stream stream) {
  Timed(OpKind::kAppend, [&] { ops_->Append(batch, params, kv, stream); });
}

void TimedOps::Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                         Stream stream) {
  Timed(OpKind::kAttention, [&] { ops_->Attention(batch, params, kv, stream); });
}

void TimedOps::Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                     Stream stream) {
  Timed(OpKind::kEvict, [&] { ops_->Evict(batch, params, kv, stream); });
}

void TimedOps::Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) {
  Timed(OpKind::kEvict, [&] { ops_->Release(slots, count, kv, stream); });
}

void TimedOps::Share(int32_t from, int32_t to, const PagedKv& kv, Stream stream) {
  Timed(OpKind::kEvict, [&] { ops_->Share(from, to, kv, stream); });
}

void TimedOps::SwapOut(int32_t slot, const HostSlot& to, const PagedKv& kv, Stream stream) {
  Timed(OpKind::kCopy, [&] { ops_->SwapOut(slot, to, kv, stream); });
}

void TimedOps::SwapIn(const HostSlot& from, int32_t slot, const PagedKv& kv, Stream stream) {
  Timed(OpKind::kCopy, [&] { ops_->SwapIn(from, slot, kv, stream); });
}

void TimedOps::BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) {
  Timed(OpKind::kAppend, [&] { ops_->BeginStep(batch, kv, stream); });
}

void TimedOps::Linear(const LinearParams& params, Stream stream) {
  Timed(OpKind::kLinear, [&] { ops_->Linear(params, stream); });
}

void TimedOps::SetPenaltyState(const PenaltyStateParams& params, Stream stream) {
  Timed(OpKind::kSample, [&] { ops_->SetPenaltyState(params, stream); });
}

void TimedOps::Sample(const SampleParams& params, Stream stream) {
  Timed(OpKind::kSample, [&] { ops_->Sample(params, stream); });
}

}  // namespace fox
