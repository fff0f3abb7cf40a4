// ExecutorLimits: what a StepExecutor can hold and compute. Requests are checked against it, plans
// stay within it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fox {

struct ExecutorLimits {
  int64_t num_pages = 0;  // in the pool
  // layers x kv heads: every 64 tokens a sequence takes that many pages.
  int64_t lists_per_slot = 0;
  int32_t layers = 0;        // lists_per_slot / layers: kv heads
  int64_t page_bytes = 0;    // what one page costs in memory
  int32_t max_num_seqs = 0;  // of one step
  int32_t num_slots = 0;     // sequences that have pages, some of them paused; 0: max_num_seqs
  // Slots behind those of sequences, for snapshots; 0: the executor takes none (no prefix cache).
  int32_t snapshot_slots = 0;
  // Host memory for slots that are swapped out, what a slot takes of it for its state and for each
  // live page, and bytes a second of the way there or back, at best; 0: the executor does not swap.
  int64_t swap_bytes = 0, swap_state_bytes = 0, swap_page_bytes = 0;
  double swap_rate = 0;
  int64_t max_model_len = 0;           // tokens of one sequence
  int64_t max_num_batched_tokens = 0;  // of one step
  int64_t max_logit_rows = 0;          // of one step
  int64_t max_drafts = 0;              // of one sequence in a step
  // Of a step in which a sequence decodes: tokens of prompts, about; 0: any.
  int64_t max_mixed_tokens = 0;
  // 1: what is computed for a token does not depend on the tokens fed with it. Else, a multiple of
  // kPageTokens, it depends on two things alone, and plans see to it that both follow from the
  // request (Sequence::ChunkWithin): whether its sequence brings one token to the step or more, and
  // that chunks end at absolute multiples of this or at the prompt's end.
  int64_t chunk_multiple = 1;
  int32_t vocab_size = 0;
  int depth = 1;                     // steps that may be submitted and not yet collected
  bool samples_on_device = false;    // whether PlannedSequence::sample is understood
  std::vector<int32_t> graph_sizes;  // batch sizes with a captured graph, ascending

  int32_t slots() const { return std::max(num_slots, max_num_seqs); }
  // Tokens, and rows of logits, that a step must take beside a decode of every sequence but one, so
  // that the one's prompt goes on.
  int64_t least_prefill() const { return chunk_multiple > 1 ? chunk_multiple + 1 : 1; }
  int64_t SwapBytes(int64_t pages) const { return swap_state_bytes + pages * swap_page_bytes; }
};

}  // namespace fox
