// The runtime's occupancy of an empty kernel whose blocks take all of a multiprocessor's shared
// memory. See cluster_room.h.
#include <cuda_runtime.h>

#include "kernels/cuda/runtime/cluster_room.h"
#include "kernels/cuda/runtime/kernel_attributes.h"

namespace fox::cuda {
namespace {

__global__ void Empty() {}

}  // namespace

bool FitsLargestCluster() {
  const void* kernel = KernelAddress(Empty);
  if (!HasSm90Code(kernel)) return true;
  if (AllowDynamicSmem<kHopperSmem, kHopperSmem>(kernel) != cudaSuccess) return false;
  int clusters = 0;  // stays 0 in an error
  ResidentClusters(kernel, 1, kHopperSmem, kLargestCluster, &clusters);
  return clusters > 0;
}

}  // namespace fox::cuda
