// The page pool on the device: the kernels that allocate pages, plan a step, and free pages. The
// same decisions as in kernels/cpu/evict.cc, by kernels/paging/acp.h. A broken promise of the
// scheduler sets PagedKv::pool_fault.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"
#include "kernels/paging/slot_image.h"

namespace fox::cuda {

// Ops::BeginStep: allocates pages, advances lengths and fills `schedule`. All enqueue on `stream`
// and return the launch's error. Nothing here depends on a value that the host would have to read.
cudaError_t BeginStep(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                      cudaStream_t stream);

// Plans the decode splits, or clusters, of one layer, of the pages that are live now. BeginStep
// does so for all layers; this is for tests of attention alone.
cudaError_t PlanSplits(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                       int layer, cudaStream_t stream);

// Ops::Evict, all layers, without lost_mass; fills schedule.evicted_before if there is memory.
cudaError_t Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                  const StepSchedule& schedule, cudaStream_t stream);

// Ops::Release; at most kMaxReleased slots per call, passed as a kernel argument.
inline constexpr int kMaxReleased = 64;
cudaError_t Release(const int32_t* host_slots, int count, const PagedKv& kv, cudaStream_t stream);

// Ops::Share.
cudaError_t Share(int32_t from, int32_t to, const PagedKv& kv, cudaStream_t stream);

// Ops::SaveSlot and Ops::LoadSlot; the image is in device memory. After a fault of LoadSlot the
// slot is empty.
cudaError_t SaveSlot(int32_t slot, const SlotImage& to, const PagedKv& kv, cudaStream_t stream);
cudaError_t LoadSlot(const SlotImage& from, int32_t slot, const PagedKv& kv, cudaStream_t stream);

// Where PagedKvShape::poison_free_pages is on, else nothing: BeginStep and LoadSlot check free
// pages, Evict and Release fill them.
cudaError_t CheckFreePages(const PagedKv& kv, cudaStream_t stream);
cudaError_t PoisonFreePages(const PagedKv& kv, cudaStream_t stream);

}  // namespace fox::cuda
