// Workload: everything that a model and a server will ever ask of a backend, known before anything
// is allocated. See Ops::Unsupported and Ops::Reserve.
#pragma once

#include <cstdint>

#include "kernels/paging/paged_kv.h"

namespace fox {

struct Workload {
  PagedKvShape shape;  // pages and sequence length as far as they are known
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  // Largest rows and sequences of one step, including the padding of decode steps up to the next
  // multiple of 32.
  int64_t max_rows = 0;
  int64_t max_seqs = 0;
  bool prunes = true;  // false: AcpMode::kOff alone
};

}  // namespace fox
