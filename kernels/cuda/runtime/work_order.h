// WorkOrder: the order of prefill attention's head tiles, one for each (query head, tile of rows).
// Heads come in groups whose keys and values fit into the L2 together; within a group the last
// tiles, which have the longest KV loops, come first, so that short ones fill the end. A step of
// few rows is one group, because the next group's long loops, which fill the end of a group, end
// late.
#pragma once

#include <cstdint>

#include "kernels/core/host_device.h"

namespace fox::cuda {

class WorkOrder {
 public:
  // `head_dim` a power of two.
  FOX_HOST_DEVICE WorkOrder(int num_tiles, int q_heads, int head_dim)
      : num_tiles_(num_tiles), q_heads_(q_heads) {
    const int64_t bytes = static_cast<int64_t>(num_tiles) * q_heads * kTileTokens * 4 * head_dim;
    const int64_t wanted = (bytes + kGroupBytes - 1) / kGroupBytes;
    const int most = (q_heads + kLeastHeads - 1) / kLeastHeads;
    const int groups = wanted < most ? static_cast<int>(wanted) : most;
    heads_ = groups <= 1 ? q_heads : (q_heads + groups - 1) / groups;
  }

  // Gives the tile and the head of head tile `index` in this order, of num_tiles * q_heads.
  FOX_HOST_DEVICE void PlaceOf(int index, int* tile, int* head) const {
    const int per_group = heads_ * num_tiles_;
    const int first_head = index / per_group * heads_;
    const int left = q_heads_ - first_head, heads = heads_ < left ? heads_ : left;
    const int rest = index % per_group;
    *tile = num_tiles_ - 1 - rest / heads;
    *head = first_head + rest % heads;
  }

  FOX_HOST_DEVICE int heads() const { return heads_; }  // of a group, but for the last

 private:
  // Bytes of a group's keys and values of the step's rows, in bf16: half of a Hopper's L2.
  static constexpr int64_t kGroupBytes = int64_t{32} << 20;
  static constexpr int kTileTokens = 128;
  // With fewer, one group's head tiles would not fill the device.
  static constexpr int kLeastHeads = 8;

  int num_tiles_, q_heads_, heads_;
};

}  // namespace fox::cuda
