// Ops: THE interface between a model and a backend. Every operation works on a whole ragged batch,
// so a virtual call costs nothing beside the work. kernels/cpu implements it for the CPU (and is
// the oracle of every kernel test), kernels/cuda for NVIDIA GPUs.
//
// Contract: operations on one stream run in order; they return when the work is enqueued (CPU:
// done). Views are borrowed for the call's work. "residual dtype" is float64 in the f64 mode, else
// float32. Rows never influence one another except through a PagedKv. A row's bits depend on
// nothing but the row, its sequence and whether it is a decode row or a prefill row (batch_view.h):
// not on the number of rows. Exceptions: on the CPU, products other than the row-independent ones;
// on GPUs other than Hopper, prefill rows and products of more than 32 decode rows, for which
// cuBLASLt may choose a kernel by their number. One thread calls at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/core/buffer.h"
#include "kernels/core/check.h"
#include "kernels/core/matrix_view.h"
#include "kernels/core/weight_format.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"
#include "kernels/interface/device_queue.h"
#include "kernels/interface/linear_params.h"
#include "kernels/interface/sampling_params.h"
#include "kernels/interface/workload.h"
#include "kernels/paging/paged_kv.h"
#include "kernels/paging/slot_image.h"

namespace fox {

class Ops {
 public:
  virtual ~Ops() = default;

  // Device and matrix product in use, human-readable, for example "cpu (2 threads, oneDNN bf16)".
  virtual std::string Description() const = 0;

  // The "activation dtype": the type of activations that only feed products (projections, attention
  // outputs, MLP). On the CPU it is the residual dtype, which the residual stream and logits have
  // everywhere.
  virtual DType ActivationDType(DType residual_dtype) const = 0;

  // Zeroed memory of the backend. If there is none: throws std::bad_alloc, or, with a queue, sets
  // its error().
  virtual Buffer Allocate(size_t bytes) = 0;
  // The host's bytes may be reused after the call, unless they lie in the queue's pinned memory.
  virtual void CopyToDevice(const void* host, size_t bytes, void* device, Stream stream) = 0;
  // Waits until the bytes have arrived.
  virtual void CopyToHost(const void* device, size_t bytes, void* host, Stream stream) = 0;

  // Where work runs behind the host: pinned memory, events, graphs. Null: calls return when done.
  virtual DeviceQueue* queue() { return nullptr; }

  // Why the backend cannot serve this, in one line that names the number; nothing: it can. To be
  // asked before anything is allocated: operations end the process where they are asked for more.
  virtual std::optional<std::string> Unsupported(const Workload&) const { return std::nullopt; }

  // Bytes that operations take beside their operands, for rows on their way into products and for
  // partial results. They do not depend on the pool's size.
  virtual int64_t WorkspaceBytes(const Workload& load) const = 0;

  // Allocates the workspace; called once, before the first step.
  virtual void Reserve(const Workload&) {}

  // weight: host memory, [out, in], any dtype. The copy is private to the result.
  virtual std::unique_ptr<PackedWeight> Pack(const MatrixView& weight) = 0;
  // As Pack, with the first `rounded_rows` rows, whose weights are finite, rounded as by RoundRow
  // (weight_format.h). The CPU has all formats, float32 activations with blocks; a GPU has kE4M3.
  virtual std::unique_ptr<PackedWeight> PackRounded(const MatrixView& weight, int64_t rounded_rows,
                                                    WeightFormat format) = 0;

  // Opens a step: takes the pages of the batch's rows for every list of every layer and counts the
  // rows but drafts as appended (kv.length). Comes before anything else of the step. REQUIRES: the
  // pool covers the new pages; position == length, or behind it by the drafts that were right.
  virtual void BeginStep(const BatchView& batch, const PagedKv& kv, Stream stream) = 0;

  // out[r] = table[token_ids[r]]; table [V, D], out [num_rows, D] residual dtype. Ids are clamped
  // into [0, V), after kLastSampledToken was replaced.
  virtual void Embed(const BatchView& batch, const MatrixView& table, const MatrixView& out,
                     Stream stream) = 0;
  // The same with a table that PackRounded has rounded to blocks as a whole.
  virtual void Embed(const BatchView&, const PackedWeight& /*table*/, const MatrixView& /*out*/,
                     Stream) {
    FOX_CHECK(false);
  }

  // out[i] = in[rows[i]] for i < count; rows readable by the backend.
  virtual void GatherRows(const MatrixView& in, const int64_t* rows, const MatrixView& out,
                          Stream stream) = 0;

  // One linear layer, of all rows of the step.
  virtual void Linear(const LinearParams& params, Stream stream) = 0;

  // Token shift, QK-norm, RoPE and log-sigmoid gates; writes keys, values and gates of the rows
  // into the pages that BeginStep took; accumulates every page that became full into the running
  // state and writes its summaries, at the latest in Evict.
  virtual void Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      Stream stream) = 0;

  // Softmax attention with decay of the batch's rows over the pages, the rows' own keys included
  // (Append comes first), with the transform of its output. Pages that the bound excludes for a row
  // are not read.
  virtual void Attention(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                         Stream stream) = 0;

  // Closes a step: accumulates the full pages that Append has left to it (EvictParams::bounds), and
  // frees, in all layers, at every page end among the batch's rows, the leading pages that no later
  // row needs.
  virtual void Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                     Stream stream) = 0;

  // Empties the slots (host memory): their pages go back to the pool, and their state becomes the
  // state of a new sequence.
  virtual void Release(const int32_t* slots, int count, const PagedKv& kv, Stream stream) = 0;

  // Makes the empty slot `to` a copy of `from` as of its last page end: the same full pages, and
  // the state of that page end.
  virtual void Share(int32_t from, int32_t to, const PagedKv& kv, Stream stream) = 0;

  // Copies the slot, which stays as it is, into the image, in memory of Allocate. If the slot has
  // more live pages than the image has room for: the CPU backend ends the process, others report
  // PoolFault::kImageOverflow and leave pages out.
  virtual void SaveSlot(int32_t slot, const SlotImage& to, const PagedKv& kv, Stream stream) = 0;
  // Restores an image into the empty slot, with pages of its own from the pool. A sequence that
  // goes on from there has the same bits. The image, which is unchanged, is of the same shape but
  // for num_pages, max_slots and max_pages. REQUIRES: the pool covers its pages.
  virtual void LoadSlot(const SlotImage& from, int32_t slot, const PagedKv& kv, Stream stream) = 0;

  // Makes a slot's token states, for rows with a logits processor. The entries must not change
  // until the work is done. Only where the backend has a queue().
  virtual void SetPenaltyState(const PenaltyStateParams&, Stream) { FOX_CHECK(false); }

  // Samples a token for each row of logits and leaves it in `sampled_tokens` of the row's slot,
  // where the next step's Embed finds it. A row with a logits processor uses its slot's token
  // states and counts the sampled token there. Only where the backend has a queue().
  virtual void Sample(const SampleParams&, Stream) { FOX_CHECK(false); }

  // Reports the log-probability and the rank of one token for each row of logits.
  virtual void Score(const ScoreParams& params, Stream stream) = 0;
};

}  // namespace fox
