// Runs the steps and keeps what they stored. See device_heads.h.
#include "tests/kernels/cuda/device_heads.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/dtype.h"

namespace fox::cuda::testing {
namespace {

PagedKvShape ShapeOf(const fox::testing::HeadInputs& head, const std::vector<HeadRows>& sequences) {
  int64_t longest = 0;
  for (const HeadRows& rows : sequences) longest = std::max(longest, rows.length());
  return fox::testing::ShapeFor(head.shape, longest, DType::kBF16,
                                static_cast<int>(sequences.size()));
}

}  // namespace

HeadConstants HeadConstants::WithGain(int head_dim, float gain) {
  HeadConstants head;
  head.head_dim = head_dim;
  head.q_norm = head.k_norm = std::vector<float>(static_cast<size_t>(head_dim), gain);
  return head;
}

fox::testing::HeadInputs HeadConstants::Inputs() const {
  fox::testing::HeadInputs inputs;
  inputs.shape = {1, 1, head_dim, shift, shift, true, !rope_frequency.empty()};
  inputs.q_norm.assign(q_norm.begin(), q_norm.end());
  inputs.k_norm.assign(k_norm.begin(), k_norm.end());
  inputs.rope_frequency = rope_frequency;
  SetQkNormBounds(inputs);
  return inputs;
}

DeviceHeads::DeviceHeads(const HeadConstants& head, std::vector<HeadRows> sequences)
    : head_(head),
      constants_(head.Inputs()),
      sequences_(std::move(sequences)),
      kv_(ShapeOf(constants_, sequences_)),
      stored_(sequences_.size()),
      lengths_(sequences_.size(), 0),
      first_live_(sequences_.size(), 0) {
  std::string error;
  ops_ = CudaOps::Create({head.portable}, &error);
  EXPECT_NE(ops_, nullptr) << error;
  int64_t rows = 0;
  for (const HeadRows& sequence : sequences_) rows += sequence.length();
  ops_->Reserve({.shape = kv_.view.shape,
                 .max_rows = rows,
                 .max_seqs = static_cast<int64_t>(sequences_.size())});
  fox::testing::RunOptions options;
  options.acp = AcpMode::kCertified;
  options.min_log_gate = std::min(head.min_log_gate, MinLogGate(head.max_logit_bound()));
  run_ = std::make_unique<fox::testing::HeadRun>(*ops_, kv_.view, constants_, options);
}

void DeviceHeads::Step(const std::vector<int64_t>& rows, bool attend) {
  std::vector<fox::testing::StepRows> entries;
  std::vector<double> projection;  // values are as keys
  for (size_t s = 0; s < rows.size(); ++s) {
    if (rows[s] == 0) continue;
    const HeadRows& sequence = sequences_[s];
    entries.push_back({static_cast<int>(s), lengths_[s], rows[s], sequence.log_tolerance});
    for (int64_t r = lengths_[s]; r < lengths_[s] + rows[s]; ++r) {
      const auto q = sequence.q.begin() + r * head_.head_dim;
      const auto k = sequence.k.begin() + r * head_.head_dim;
      projection.insert(projection.end(), q, q + head_.head_dim);
      for (int i = 0; i < 2; ++i) projection.insert(projection.end(), k, k + head_.head_dim);
      // The shares of the shift: logits that differ from row to row.
      if (head_.shift) projection.insert(projection.end(), {double{*k}, double{*q}});
      projection.push_back(static_cast<double>(sequence.gate_logit[static_cast<size_t>(r)]));
    }
    lengths_[s] += rows[s];
  }
  if (entries.empty()) return;
  Keep(entries, run_->Step(entries, projection, attend), attend);
  EXPECT_EQ(ops_->queue()->error(), nullptr) << ops_->queue()->error();
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

void DeviceHeads::Keep(const std::vector<fox::testing::StepRows>& entries,
                       const fox::testing::HeadRun::Result& step, bool attend) {
  const std::vector<uint16_t> keys = kv_.keys.ToHost();
  const std::vector<float> offsets = kv_.log_f_offset.ToHost();
  const std::vector<double> base = kv_.page_cum_log_f.ToHost(), mass = kv_.log_mass_bound.ToHost();
  const std::vector<double> denominator = kv_.log_denominator_bound.ToHost();
  const std::vector<int32_t> table = kv_.page_table.ToHost();
  const auto d = static_cast<size_t>(head_.head_dim);
  size_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const fox::testing::StepRows& entry = entries[i];
    StoredRows& stored = stored_[static_cast<size_t>(entry.slot)];
    int first = first_live_[static_cast<size_t>(entry.slot)];
    const int64_t last = entry.position + entry.rows - 1;
    // The kernels count what a tile's rows skip together; a decoding row skips nothing by itself.
    if (attend && entry.rows > 1 && entry.rows <= 64 && entry.position / 128 == last / 128) {
      first = std::max(first, static_cast<int>(step.blocks_pruned[i] / entry.rows));
    }
    for (int64_t position = entry.position; position <= last; ++position, ++row) {
      const auto page = static_cast<size_t>(table[static_cast<size_t>(
          entry.slot * kv_.view.shape.max_pages + position / kPageTokens)]);
      const size_t token = page * kPageTokens + static_cast<size_t>(position % kPageTokens);
      for (size_t m = 0; m < d; ++m) {
        stored.q.push_back(step.projection[row * static_cast<size_t>(constants_.columns()) + m]);
        stored.k.push_back(Widen(keys[token * d + m]));
      }
      stored.log_f_offset.push_back(static_cast<double>(offsets[token]));
      stored.first_page.push_back(first);
      stored.lse.push_back(step.lse[row]);
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

}  // namespace fox::cuda::testing
