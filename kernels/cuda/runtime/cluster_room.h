// Whether the device has room for the largest cluster that the kernels for Hopper launch.
#pragma once

namespace fox::cuda {

// Blocks of the largest cluster: decode attention, products and sampling have clusters of up to
// this size, the largest portable one.
inline constexpr int kLargestCluster = 8;

// True if the current device can hold a cluster of kLargestCluster blocks, each alone on its
// multiprocessor, or runs no code with clusters. False on a slice of a device (MIG) whose parts
// have fewer multiprocessors: there each such launch would fail. Any thread.
bool FitsLargestCluster();

}  // namespace fox::cuda
