// ExecutorLimits: sizes of a StepExecutor. Requests are checked against them, and plans stay within
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/request/chunk_rule.h"

namespace fox {

struct ExecutorLimits {
  int64_t num_pages = 0;  // in the pool
  // layers x kv heads: the pages that a sequence takes every 64 tokens.
  int64_t lists_per_slot = 0;
  int32_t layers = 0;        // lists_per_slot / layers: kv heads
  int64_t page_bytes = 0;    // bytes of one page
  int32_t max_num_seqs = 0;  // sequences in a step
  int32_t num_slots = 0;     // sequences with pages, running or not; 0: max_num_seqs
  // Slots for snapshots, numbered after the slots of sequences; 0: no prefix cache.
  int32_t snapshot_slots = 0;
  // Memory for images of snapshots: buffers, the bytes of each, and the bytes that an image takes
  // for a slot's state and for each of its pages. staging_buffers 0: nothing is saved.
  int32_t staging_buffers = 0;
  int64_t staging_bytes = 0, image_state_bytes = 0, image_page_bytes = 0;
  int64_t max_model_len = 0;           // tokens of a sequence
  int64_t max_num_batched_tokens = 0;  // tokens of a step
  int64_t max_logit_rows = 0;          // rows of logits of a step
  int64_t max_drafts = 0;              // drafts of a sequence in a step
  // About how many tokens of prompts a step may have for each of its decodes. A step with fewer
  // than kLeastDecodes decodes (policy.h) may have as many as one with kLeastDecodes. 0: any
  // number.
  int64_t prefill_tokens_per_decode = 0;
  ChunkRule chunks;
  int32_t vocab_size = 0;
  int depth = 1;                     // steps submitted and not yet collected
  bool samples_on_device = false;    // the executor understands PlannedSequence::sample
  bool scores = false;               // the executor understands PlannedSequence::scores
  std::vector<int32_t> graph_sizes;  // batch sizes with a captured graph, ascending

  int32_t slots() const { return std::max(num_slots, max_num_seqs); }
  int64_t ImageBytes(int64_t pages) const { return image_state_bytes + pages * image_page_bytes; }
};

}  // namespace fox
