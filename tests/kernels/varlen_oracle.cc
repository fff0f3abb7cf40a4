// The oracle of varlen attention. Row by row: its weights over the keys, then its addends to the
// gradients.
#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "tests/kernels/varlen_inputs.h"

namespace fox::testing {
namespace {

double Dot(const double* a, const double* b, int count) {
  double sum = 0;
  for (int m = 0; m < count; ++m) sum += a[m] * b[m];
  return sum;
}

void AddScaled(double* to, double factor, const double* x, int count) {
  for (int m = 0; m < count; ++m) to[m] += factor * x[m];
}

void SetToZero(VarlenArray<double>& array, const VarlenInputs& inputs) {
  for (int b = 0; b < inputs.batch; ++b) {
    for (int t = 0; t < inputs.tokens; ++t) {
      for (int h = 0; h < array.heads; ++h) std::fill_n(&array.At(b, t, h), array.head_dim, 0.0);
    }
  }
}

// One query head over one sequence. Positions count in the sequence.
class HeadSequence {
 public:
  HeadSequence(VarlenInputs& inputs, int seq, int head, const std::vector<int32_t>& first_key)
      : in_(inputs),
        first_key_(first_key),
        seq_(seq),
        head_(head),
        c_(static_cast<size_t>(inputs.length(seq))),
        weight_(c_.size()) {
    double sum = 0;
    for (int64_t i = 0; i < length(); ++i) {
      c_[static_cast<size_t>(i)] = sum += *QueryRow(inputs.log_fgate, i);
    }
  }

  int64_t length() const { return in_.length(seq_); }
  double c(int64_t i) const { return c_[static_cast<size_t>(i)]; }
  size_t Index(int64_t i) const { return in_.RowIndex(seq_, static_cast<int>(i), head_); }
  double* QueryRow(VarlenArray<double>& array, int64_t i) const {
    return &array.At(in_.BatchOf(seq_), in_.begin[static_cast<size_t>(seq_)] + i, head_);
  }
  double* KeyRow(VarlenArray<double>& array, int64_t j) const {
    return &array.At(in_.BatchOf(seq_), in_.begin[static_cast<size_t>(seq_)] + j,
                     head_ / (in_.shape.q_heads / in_.shape.kv_heads));
  }
  int64_t FirstKey(int64_t i) const { return first_key_.empty() ? 0 : first_key_[Index(i)]; }

  // The softmax over the keys that row i sees, in weight(j); returns the log of its denominator.
  double Softmax(int64_t i) {
    const int64_t first = FirstKey(i);
    double top = -std::numeric_limits<double>::infinity();
    for (int64_t j = first; j <= i; ++j) {
      weight(j) =
          in_.scale * Dot(QueryRow(in_.q, i), KeyRow(in_.k, j), in_.shape.head_dim) + c(i) - c(j);
      top = std::max(top, weight(j));
    }
    double sum = 0;
    for (int64_t j = first; j <= i; ++j) sum += weight(j) = std::exp(weight(j) - top);
    for (int64_t j = first; j <= i; ++j) weight(j) /= sum;
    return top + std::log(sum);
  }

  double Forward(int64_t i) {
    const double lse = Softmax(i);
    for (int64_t j = FirstKey(i); j <= i; ++j) {
      AddScaled(QueryRow(in_.out, i), weight(j), KeyRow(in_.v, j), in_.shape.head_dim);
    }
    return lse;
  }

  void Backward(int64_t i) {
    const int dim = in_.shape.head_dim;
    const int64_t first = FirstKey(i);
    const double* d_out = QueryRow(in_.d_out, i);
    Softmax(i);
    double delta = 0;
    for (int64_t j = first; j <= i; ++j) {
      delta += weight(j) * Dot(d_out, KeyRow(in_.v, j), dim);
    }
    // The logit of (i, j) contains log f_t for j < t <= i.
    double d_logits_before = 0;
    for (int64_t j = first; j <= i; ++j) {
      *QueryRow(in_.d_log_fgate, j) += d_logits_before;
      const double d_logit = weight(j) * (Dot(d_out, KeyRow(in_.v, j), dim) - delta);
      d_logits_before += d_logit;
      AddScaled(KeyRow(in_.dv, j), weight(j), d_out, dim);
      AddScaled(KeyRow(in_.dk, j), in_.scale * d_logit, QueryRow(in_.q, i), dim);
      AddScaled(QueryRow(in_.dq, i), in_.scale * d_logit, KeyRow(in_.k, j), dim);
    }
  }

 private:
  double& weight(int64_t j) { return weight_[static_cast<size_t>(j)]; }

  VarlenInputs& in_;
  const std::vector<int32_t>& first_key_;
  const int seq_, head_;
  std::vector<double> c_, weight_;
};

// body(HeadSequence) for each sequence and query head; all heads of one kv head in one thread.
template <typename Body>
void ForEachHead(VarlenInputs& inputs, const std::vector<int32_t>& first_key, const Body& body) {
  ThreadPool threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const int kv_heads = inputs.shape.kv_heads, group = inputs.shape.q_heads / kv_heads;
  threads.ForEach(int64_t{inputs.num_seqs()} * kv_heads, true, [&](int64_t index) {
    const int seq = static_cast<int>(index / kv_heads),
              kv_head = static_cast<int>(index % kv_heads);
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      HeadSequence head(inputs, seq, h, first_key);
      body(head);
    }
  });
}

}  // namespace

std::vector<double> VarlenInputs::CumulativeGates() {
  std::vector<double> gates(num_rows());
  ForEachHead(*this, {}, [&](const HeadSequence& head) {
    for (int64_t i = 0; i < head.length(); ++i) gates[head.Index(i)] = head.c(i);
  });
  return gates;
}

std::vector<double> VarlenInputs::Forward(const std::vector<int32_t>& first_key) {
  std::vector<double> lse(num_rows());
  SetToZero(out, *this);
  ForEachHead(*this, first_key, [&](HeadSequence& head) {
    for (int64_t i = 0; i < head.length(); ++i) lse[head.Index(i)] = head.Forward(i);
  });
  return lse;
}

void VarlenInputs::Backward(const std::vector<int32_t>& first_key) {
  for (VarlenArray<double>* array : {&dq, &dk, &dv, &d_log_fgate}) SetToZero(*array, *this);
  ForEachHead(*this, first_key, [](HeadSequence& head) {
    for (int64_t i = 0; i < head.length(); ++i) head.Backward(i);
  });
}

}  // namespace fox::testing
