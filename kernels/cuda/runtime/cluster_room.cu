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
  if (!HasSm90Code(KernelAddress(Empty))) return true;
  if (AllowDynamicSmem<kHopperSmem, kHopperSmem>(KernelAddress(Empty)) != cudaSuccess) return false;
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim.x = kLargestCluster;
  size.val.clusterDim.y = size.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kLargestCluster);
  config.blockDim = dim3(1);
  config.dynamicSmemBytes = kHopperSmem;
  config.attrs = &size;
  config.numAttrs = 1;
  int clusters = 0;
  return cudaOccupancyMaxActiveClusters(&clusters, Empty, &config) == cudaSuccess && clusters > 0;
}

}  // namespace fox::cuda
