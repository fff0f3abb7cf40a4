// AttentionSetup: a paged cache filled through the CUDA backend's own operations, so that attention
// alone can be timed on it. Keys and queries have unit RMS, three heads of four forget (gate logits
// N(1, 1)) and one remembers (N(9, 1)): the bimodal heads that FoX models show.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_state.h"
#include "kernels/paged_kv_storage.h"

namespace fox {

struct AttentionCase {
  int heads = 24;
  int head_dim = 64;
  int64_t tokens = 16384;  // of one sequence
  int batch = 4;
  int layers = 1;        // calls go round them, so that the working set exceeds the L2 cache
  int64_t max_rows = 0;  // of one step, all sequences together
  double log_tolerance = -10;
};

class AttentionSetup {
 public:
  AttentionSetup(CudaOps& ops, const AttentionCase& shape, AcpMode acp);

  // Appends `rows` tokens to every sequence, in steps of at most max_rows rows; afterwards the
  // last step is the current one. With `evict`, each step ends with Ops::Evict.
  void Append(int64_t rows, bool evict);
  // The attention of the current step, on layer `call` modulo the layers.
  void Attend(int call);

  // Share of the page blocks in the causal range that one Attend visits.
  double VisitedShare();
  // What one Attend of the current step, one row a sequence, has to read.
  double LivePageBytes() const;

 private:
  void MakeWeights();
  void BeginStep(int64_t rows_each);
  AttentionParams Params(int layer) const;
  template <typename T>
  void Send(const std::vector<T>& values, Buffer& buffer);

  CudaOps& ops_;
  AttentionCase case_;
  AcpMode acp_;
  std::unique_ptr<PagedKvStorage> storage_;
  Buffer projection_, out_, norm_, fgate_bias_, diagonal_, logit_;
  Buffer slot_, row_begin_, position_, tolerance_, total_, skipped_;
  int64_t stride_ = 0, length_ = 0, rows_ = 0;
  double self_logit_bound_ = 0;
  QueryBound bound_;
  BatchView batch_;
};

}  // namespace fox
