// Runs the steps and keeps what they stored. See device_heads.h.
#include "tests/kernels/cuda/device_heads.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/core/dtype.h"

namespace fox::cuda::testing {
namespace {

constexpr int kColumnsBesideHeads = 8;  // the gate, two shares of the token shift, padding

double Widened(uint16_t bits) {
  return static_cast<double>(static_cast<float>(std::bit_cast<BFloat16>(bits)));
}

float Largest(const std::vector<float>& values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

PagedKvShape ShapeOf(const HeadConstants& head, const std::vector<HeadRows>& sequences) {
  int64_t longest = 0;
  for (const HeadRows& rows : sequences) longest = std::max(longest, rows.length());
  PagedKvShape shape;
  shape.layers = shape.q_heads = shape.kv_heads = 1;
  shape.head_dim = head.head_dim;
  shape.dtype = DType::kBF16;
  shape.max_slots = static_cast<int>(sequences.size());
  shape.max_pages = PagesFor(longest);
  shape.num_pages = shape.max_slots * shape.max_pages;
  shape.k_shift = shape.v_shift = head.shift;
  return shape;
}

std::vector<float> Diagonal(const HeadConstants& head) {
  std::vector<float> diagonal(head.q_norm.size());
  const size_t d = diagonal.size();
  for (size_t m = 0; m < d; ++m) {
    const float partner = head.rotates() ? std::abs(head.q_norm[(m + d / 2) % d]) : 0;
    diagonal[m] = std::max(std::abs(head.q_norm[m]), partner);
  }
  return diagonal;
}

}  // namespace

HeadConstants HeadConstants::WithGain(int head_dim, float gain) {
  HeadConstants head;
  head.head_dim = head_dim;
  head.q_norm = head.k_norm = std::vector<float>(static_cast<size_t>(head_dim), gain);
  return head;
}

double HeadConstants::self_logit_bound() const {
  double product = 0;
  for (size_t m = 0; m < q_norm.size(); ++m) {
    product = std::max(product, std::abs(static_cast<double>(q_norm[m]) * k_norm[m]));
  }
  return SelfLogitBound(head_dim, product, Largest(q_norm), Largest(k_norm), rotates());
}

double HeadConstants::max_logit_bound() const {
  return MaxLogitBound(head_dim, Largest(q_norm), Largest(k_norm));
}

DeviceHeads::DeviceHeads(const HeadConstants& head, std::vector<HeadRows> sequences)
    : head_(head),
      sequences_(std::move(sequences)),
      stride_(3 * head.head_dim + kColumnsBesideHeads),
      kv_(ShapeOf(head, sequences_)),
      stored_(sequences_.size()),
      lengths_(sequences_.size(), 0),
      first_live_(sequences_.size(), 0),
      q_norm_(head.q_norm),
      k_norm_(head.k_norm),
      diagonal_(Diagonal(head)),
      frequency_(head.rope_frequency),
      self_logit_bound_(std::vector<double>{head.self_logit_bound()}),
      max_logit_bound_(std::vector<double>{head.max_logit_bound()}) {
  std::string error;
  ops_ = CudaOps::Create({head.portable}, &error);
  EXPECT_NE(ops_, nullptr) << error;
  int64_t rows = 0;
  for (const HeadRows& sequence : sequences_) rows += sequence.length();
  ops_->Reserve({.shape = kv_.view.shape,
                 .max_rows = rows,
                 .max_seqs = static_cast<int64_t>(sequences_.size())});
}

void DeviceHeads::Step(const std::vector<int64_t>& rows, bool attend) {
  std::vector<BatchEntry> entries;
  std::vector<uint16_t> projection;
  const auto d = static_cast<size_t>(head_.head_dim), stride = static_cast<size_t>(stride_);
  for (size_t s = 0; s < rows.size(); ++s) {
    if (rows[s] == 0) continue;
    const HeadRows& sequence = sequences_[s];
    entries.push_back({static_cast<int>(s), lengths_[s], rows[s], sequence.log_tolerance});
    for (int64_t r = lengths_[s]; r < lengths_[s] + rows[s]; ++r) {
      const auto at = static_cast<size_t>(r);
      const size_t first = projection.size();
      projection.resize(first + stride, 0);
      for (size_t m = 0; m < d; ++m) {
        projection[first + m] = BFloat16(sequence.q[at * d + m]).bits;
        projection[first + d + m] = BFloat16(sequence.k[at * d + m]).bits;
        projection[first + 2 * d + m] = BFloat16(sequence.k[at * d + m]).bits;
      }
      projection[first + 3 * d] = BFloat16(sequence.gate_logit[at]).bits;
      // The shares of the shift: logits that differ from row to row.
      projection[first + 3 * d + 1] = projection[first + d];
      projection[first + 3 * d + 2] = projection[first];
    }
    lengths_[s] += rows[s];
  }
  if (entries.empty()) return;
  const DeviceBatch batch(entries);
  const DeviceArray<uint16_t> on_device(projection);
  const Attended attended{DeviceArray<int64_t>(std::vector<int64_t>(entries.size(), 0)),
                          DeviceArray<float>(static_cast<size_t>(batch.view.num_rows))};
  Enqueue(batch, on_device, attend, attended);
  Keep(entries, on_device.ToHost(), attended, attend);
}

void DeviceHeads::Run(int64_t rows, bool attend) {
  std::vector<int64_t> counts(sequences_.size());
  do {
    for (size_t s = 0; s < counts.size(); ++s) {
      counts[s] = std::min(rows, sequences_[s].length() - lengths_[s]);
    }
    Step(counts, attend);
  } while (*std::max_element(counts.begin(), counts.end()) > 0);
}

void DeviceHeads::Enqueue(const DeviceBatch& batch, const DeviceArray<uint16_t>& projection,
                          bool attend, const Attended& attended) {
  const int64_t rows = batch.view.num_rows, d = head_.head_dim;
  AppendParams append;
  append.projection = {projection.data(), DType::kBF16, rows, stride_, stride_};
  append.k_column = d;
  append.v_column = 2 * d;
  append.fgate_column = 3 * d;
  if (head_.shift) {
    append.k_shift_column = 3 * d + 1;
    append.v_shift_column = 3 * d + 2;
  }
  append.min_log_gate = std::min(head_.min_log_gate, MinLogGate(head_.max_logit_bound()));
  append.q_norm = q_norm_.data();
  append.k_norm = k_norm_.data();
  append.rope_frequency = head_.rotates() ? frequency_.data() : nullptr;
  append.bound.diagonal = diagonal_.data();
  append.bound.scale = kKeyNormInflation;
  append.bound.self_logit_bound = self_logit_bound_.data();
  append.bound.max_logit_bound = max_logit_bound_.data();
  append.acp = AcpMode::kCertified;
  const DeviceArray<uint16_t> out(static_cast<size_t>(rows * d));
  AttentionParams attention;
  attention.q = append.projection.Columns(0, d);
  attention.out = {out.data(), DType::kBF16, rows, d, d};
  attention.acp = append.acp;
  attention.bound = append.bound;
  attention.lse = {attended.lse.data(), DType::kF32, rows, 1, 1};
  attention.blocks_pruned = attended.pruned.data();
  ops_->BeginStep(batch.view, kv_.view, nullptr);
  ops_->Append(batch.view, append, kv_.view, nullptr);
  if (attend) ops_->Attention(batch.view, attention, kv_.view, nullptr);
  ops_->Evict(batch.view, {append.acp, self_logit_bound_.data(), max_logit_bound_.data()}, kv_.view,
              nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(ops_->queue()->error(), nullptr) << ops_->queue()->error();
}

void DeviceHeads::Keep(const std::vector<BatchEntry>& entries,
                       const std::vector<uint16_t>& projection, const Attended& attended,
                       bool attend) {
  const std::vector<int64_t> pruned = attended.pruned.ToHost();
  const std::vector<float> lse = attended.lse.ToHost();
  const std::vector<uint16_t> keys = kv_.keys.ToHost();
  const std::vector<float> offsets = kv_.log_f_offset.ToHost();
  const std::vector<double> base = kv_.page_cum_log_f.ToHost(), mass = kv_.log_mass_bound.ToHost();
  const std::vector<double> denominator = kv_.log_denominator_bound.ToHost();
  const std::vector<int32_t> table = kv_.page_table.ToHost();
  const auto d = static_cast<size_t>(head_.head_dim);
  size_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const BatchEntry& entry = entries[i];
    StoredRows& stored = stored_[static_cast<size_t>(entry.slot)];
    int first = first_live_[static_cast<size_t>(entry.slot)];
    const int64_t last = entry.position + entry.rows - 1;
    // The kernels count what a tile's rows skip together; a decoding row skips nothing by itself.
    if (attend && entry.rows > 1 && entry.rows <= 64 && entry.position / 128 == last / 128) {
      first = std::max(first, static_cast<int>(pruned[i] / entry.rows));
    }
    for (int64_t position = entry.position; position <= last; ++position, ++row) {
      const auto page = static_cast<size_t>(table[static_cast<size_t>(
          entry.slot * kv_.view.shape.max_pages + position / kPageTokens)]);
      const size_t token = page * kPageTokens + static_cast<size_t>(position % kPageTokens);
      for (size_t m = 0; m < d; ++m) {
        stored.q.push_back(Widened(projection[row * static_cast<size_t>(stride_) + m]));
        stored.k.push_back(Widened(keys[token * d + m]));
      }
      stored.log_f_offset.push_back(static_cast<double>(offsets[token]));
      stored.first_page.push_back(first);
      stored.lse.push_back(static_cast<double>(lse[row]));
      if (position % kPageTokens == 0) stored.page_cum_log_f.push_back(base[page]);
      if (position % kPageTokens != kPageTokens - 1) continue;
      stored.log_mass_bound.push_back(mass[page]);
      stored.log_denominator_bound.push_back(denominator[page]);
    }
  }
  first_live_ = kv_.first_live.ToHost();
}

double DeviceHeads::max_log_evicted_mass(int s) const {
  return kv_.max_log_evicted_mass.ToHost()[static_cast<size_t>(s)];
}

double DeviceHeads::LogLostMass(int s, int64_t row, const std::vector<double>* c) const {
  const int first_page = stored(s).first_page[static_cast<size_t>(row)];
  return LogMassBefore(s, row, static_cast<size_t>(first_page) * kPageTokens, c);
}

std::vector<double> DeviceHeads::Logits(int s, int64_t row, const std::vector<double>* c) const {
  const StoredRows& rows = stored_[static_cast<size_t>(s)];
  const auto i = static_cast<size_t>(row), d = static_cast<size_t>(head_.head_dim);
  const auto gate = [&](size_t j) {
    return c != nullptr ? (*c)[j] : rows.CumulativeGate(static_cast<int64_t>(j));
  };
  std::vector<double> logits(i + 1);
  for (size_t j = 0; j <= i; ++j) {
    double product = 0;
    for (size_t m = 0; m < d; ++m) product += rows.q[i * d + m] * rows.k[j * d + m];
    logits[j] = product / std::sqrt(static_cast<double>(d)) + (gate(i) - gate(j));
  }
  return logits;
}

double DeviceHeads::LogMassBefore(int s, int64_t row, size_t first,
                                  const std::vector<double>* c) const {
  if (first == 0) return kNoMass;
  const std::vector<double> logits = Logits(s, row, c);
  return LogSumExp(logits.data(), static_cast<int>(first)) -
         LogSumExp(logits.data(), static_cast<int>(logits.size()));
}

double DeviceHeads::ExactLse(int s, int64_t row) const {
  const std::vector<double> logits = Logits(s, row, nullptr);
  return LogSumExp(logits.data(), static_cast<int>(logits.size()));
}

double DeviceHeads::WorstExcess() const {
  double worst = kNoMass;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    for (int64_t row = 0; row < lengths_[s]; ++row) {
      const double lost = LogLostMass(static_cast<int>(s), row);
      worst = std::max(worst, lost - sequences_[s].log_tolerance);
    }
  }
  return worst;
}

HeadRows RandomRows(int head_dim, int64_t length, double gate_mean, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  HeadRows rows;
  for (int64_t i = 0; i < length * head_dim; ++i) {
    rows.q.push_back(normal(rng));
    rows.k.push_back(normal(rng));
  }
  for (int64_t i = 0; i < length; ++i) {
    rows.gate_logit.push_back(static_cast<float>(gate_mean) + normal(rng));
  }
  return rows;
}

double GateLogit(double log_f) { return log_f < -30 ? log_f : -std::log(std::expm1(-log_f)); }

}  // namespace fox::cuda::testing
