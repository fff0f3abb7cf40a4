// Row by row: its weights over the keys, then its addends to the gradients. See
// varlen_oracle.h.
#include "tests/kernels/varlen_oracle.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace fox {
namespace {

double* At(const VarlenView& view, int64_t batch, int64_t token, int64_t head) {
  return static_cast<double*>(view.data) + batch * view.batch_stride + token * view.token_stride +
         head * view.head_stride;
}

double Dot(const double* a, const double* b, int count) {
  double sum = 0;
  for (int m = 0; m < count; ++m) sum += a[m] * b[m];
  return sum;
}

void AddScaled(double* to, double factor, const double* x, int count) {
  for (int m = 0; m < count; ++m) to[m] += factor * x[m];
}

void SetToZero(const VarlenAttentionParams& params, const VarlenView& view, int heads, int count) {
  for (int b = 0; b < params.batch; ++b) {
    for (int t = 0; t < params.tokens; ++t) {
      for (int h = 0; h < heads; ++h) std::fill_n(At(view, b, t, h), count, 0.0);
    }
  }
}

// One query head over one sequence. Positions count in the sequence.
class HeadSequence {
 public:
  HeadSequence(const VarlenAttentionParams& params, int seq, int head, const int32_t* first_key)
      : params_(params),
        first_key_(first_key),
        batch_(params.seqs.packed ? 0 : seq),
        begin_(params.seqs.begin == nullptr ? 0 : params.seqs.begin[seq]),
        length_(std::max<int64_t>(
            0, (params.seqs.end == nullptr ? params.tokens : params.seqs.end[seq]) - begin_)),
        head_(head),
        kv_head_(head / (params.q_heads / params.kv_heads)),
        c_(static_cast<size_t>(length_)),
        weight_(c_.size()) {
    double sum = 0;
    for (int64_t i = 0; i < length_; ++i) {
      sum += *At(params.log_fgate, batch_, begin_ + i, head);
      c_[static_cast<size_t>(i)] = sum;
    }
  }

  int64_t length() const { return length_; }
  double c(int64_t i) const { return c_[static_cast<size_t>(i)]; }
  // Of an array [batch][tokens][q_heads].
  int64_t Index(int64_t i) const {
    return (batch_ * params_.tokens + begin_ + i) * params_.q_heads + head_;
  }
  double* QueryRow(const VarlenView& view, int64_t i) const {
    return At(view, batch_, begin_ + i, head_);
  }
  double* KeyRow(const VarlenView& view, int64_t j) const {
    return At(view, batch_, begin_ + j, kv_head_);
  }
  int64_t FirstKey(int64_t i) const { return first_key_ == nullptr ? 0 : first_key_[Index(i)]; }

  // The softmax over the keys that row i sees, in weight(j); returns the log of its denominator.
  double Softmax(int64_t i) {
    const int64_t first = FirstKey(i);
    double top = -std::numeric_limits<double>::infinity();
    for (int64_t j = first; j <= i; ++j) {
      weight(j) =
          params_.scale * Dot(QueryRow(params_.q, i), KeyRow(params_.k, j), params_.head_dim) +
          c(i) - c(j);
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
      AddScaled(QueryRow(params_.out, i), weight(j), KeyRow(params_.v, j), params_.head_dim);
    }
    return lse;
  }

  void Backward(int64_t i) {
    const int dim = params_.head_dim;
    const int64_t first = FirstKey(i);
    const double* d_out = QueryRow(params_.d_out, i);
    Softmax(i);
    double delta = 0;
    for (int64_t j = first; j <= i; ++j) {
      delta += weight(j) * Dot(d_out, KeyRow(params_.v, j), dim);
    }
    // The logit of (i, j) contains log f_t for j < t <= i.
    double d_logits_before = 0;
    for (int64_t j = first; j <= i; ++j) {
      *QueryRow(params_.d_log_fgate, j) += d_logits_before;
      const double d_logit = weight(j) * (Dot(d_out, KeyRow(params_.v, j), dim) - delta);
      d_logits_before += d_logit;
      AddScaled(KeyRow(params_.dv, j), weight(j), d_out, dim);
      AddScaled(KeyRow(params_.dk, j), params_.scale * d_logit, QueryRow(params_.q, i), dim);
      AddScaled(QueryRow(params_.dq, i), params_.scale * d_logit, KeyRow(params_.k, j), dim);
    }
  }

 private:
  double& weight(int64_t j) { return weight_[static_cast<size_t>(j)]; }

  const VarlenAttentionParams& params_;
  const int32_t* first_key_;
  int64_t batch_, begin_, length_;
  int head_, kv_head_;
  std::vector<double> c_, weight_;
};

// body(HeadSequence) for each sequence and query head; those of one kv head in one thread.
template <typename Body>
void ForEachHead(const VarlenAttentionParams& params, const int32_t* first_key, const Body& body) {
  ThreadPool threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const int group = params.q_heads / params.kv_heads;
  const int64_t count = int64_t{params.seqs.count} * params.kv_heads;
  threads.ForEach(count, true, [&](int64_t index) {
    const int seq = static_cast<int>(index / params.kv_heads);
    const int kv_head = static_cast<int>(index % params.kv_heads);
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      HeadSequence head(params, seq, h, first_key);
      body(head);
    }
  });
}

}  // namespace

void VarlenCumulativeGates(const VarlenAttentionParams& params, double* cum_log_f) {
  std::fill_n(cum_log_f, int64_t{params.batch} * params.tokens * params.q_heads, 0.0);
  ForEachHead(params, nullptr, [&](const HeadSequence& head) {
    for (int64_t i = 0; i < head.length(); ++i) cum_log_f[head.Index(i)] = head.c(i);
  });
}

void VarlenForwardFloat64(const VarlenAttentionParams& params, const int32_t* first_key,
                          double* lse) {
  SetToZero(params, params.out, params.q_heads, params.head_dim);
  if (lse != nullptr) {
    std::fill_n(lse, int64_t{params.batch} * params.tokens * params.q_heads, 0.0);
  }
  ForEachHead(params, first_key, [&](HeadSequence& head) {
    for (int64_t i = 0; i < head.length(); ++i) {
      const double row = head.Forward(i);
      if (lse != nullptr) lse[head.Index(i)] = row;
    }
  });
}

void VarlenBackwardFloat64(const VarlenAttentionParams& params, const int32_t* first_key) {
  SetToZero(params, params.dq, params.q_heads, params.head_dim);
  SetToZero(params, params.dk, params.kv_heads, params.head_dim);
  SetToZero(params, params.dv, params.kv_heads, params.head_dim);
  SetToZero(params, params.d_log_fgate, params.q_heads, 1);
  ForEachHead(params, first_key, [](HeadSequence& head) {
    for (int64_t i = 0; i < head.length(); ++i) head.Backward(i);
  });
}

}  // namespace fox
