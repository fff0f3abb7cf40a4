// Runs the steps and keeps the keys, gates and bounds that they stored. See device_heads.h.
#include "tests/kernels/cuda/device_heads.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/dtype.h"

namespace fox::cuda::testing {
namespace {

PagedKvShape ShapeOf(const std::vector<HeadRows>& sequences) {
  int64_t longest = 0;
  for (const HeadRows& rows : sequences) longest = std::max(longest, rows.inputs.length);
  const HeadInputs& first = sequences[0].inputs;
  return fox::testing::ShapeFor(first.shape, longest, first.pages,
                                static_cast<int>(sequences.size()));
}

}  // namespace

DeviceHeads::DeviceHeads(std::vector<HeadRows> sequences, bool portable, double min_log_gate)
    : sequences_(std::move(sequences)),
      kv_(ShapeOf(sequences_)),
      stored_(sequences_.size()),
      lost_(sequences_.size()),
      lengths_(sequences_.size(), 0),
      first_live_(sequences_.size(), 0) {
  std::string error;
  ops_ = CudaOps::Create({portable}, &error);
  EXPECT_NE(ops_, nullptr) << error;
  int64_t rows = 0;
  for (const HeadRows& sequence : sequences_) rows += sequence.inputs.length;
  ops_->Reserve({.shape = kv_.view.shape, .max_rows = rows, .max_seqs = num_seqs()});
  fox::testing::RunOptions options;
  options.acp = AcpMode::kCertified;
  options.min_log_gate = std::min(min_log_gate, MinLogGate(constants().max_logit_bound[0]));
  run_ = std::make_unique<fox::testing::HeadRun>(*ops_, kv_.view, constants(), options);
}

void DeviceHeads::Step(const std::vector<int64_t>& rows, bool attend) {
  std::vector<fox::testing::StepRows> entries;
  std::vector<double> projection;
  for (size_t s = 0; s < rows.size(); ++s) {
    if (rows[s] == 0) continue;
    const int64_t columns = constants().columns();
    const auto begin = sequences_[s].inputs.projection.begin() + lengths_[s] * columns;
    entries.push_back({static_cast<int>(s), lengths_[s], rows[s], sequences_[s].log_tolerance});
    projection.insert(projection.end(), begin, begin + rows[s] * columns);
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
      counts[s] = std::min(rows, sequences_[s].inputs.length - lengths_[s]);
    }
    Step(counts, attend);
  } while (*std::max_element(counts.begin(), counts.end()) > 0);
}

void DeviceHeads::Keep(const std::vector<fox::testing::StepRows>& entries,
                       const fox::testing::HeadRun::Result& step, bool attend) {
  const std::vector<uint16_t> keys = kv_.keys.ToHost();
  const std::vector<int8_t> exponents = kv_.exponents.ToHost();
  const auto key_at = [&](size_t page, size_t token, size_t i) {
    if (exponents.empty()) return Widen(keys[i]);
    const auto code = static_cast<uint8_t>(keys[i / 2] >> i % 2 * 8);
    const int exponent = exponents[page * 2 * kPageTokens + token];
    return static_cast<double>(static_cast<float>(E4M3Value(code, exponent)));
  };
  const std::vector<float> offsets = kv_.log_f_offset.ToHost();
  const std::vector<double> base = kv_.page_cum_log_f.ToHost(), mass = kv_.log_mass_bound.ToHost();
  const std::vector<double> denominator = kv_.log_denominator_bound.ToHost();
  const std::vector<int32_t> table = kv_.page_table.ToHost();
  const auto d = static_cast<size_t>(constants().shape.head_dim);
  size_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const fox::testing::StepRows& entry = entries[i];
    StoredRows& stored = stored_[static_cast<size_t>(entry.slot)];
    lost_[static_cast<size_t>(entry.slot)].Add(step.lost_mass[i]);
    int first = first_live_[static_cast<size_t>(entry.slot)];
    const int64_t last = entry.position + entry.rows - 1;
    // The kernels count the pages that a tile's rows skip together; a decoding row skips nothing by
    // itself.
    if (attend && entry.rows > 1 && entry.rows <= 64 && entry.position / 128 == last / 128) {
      first = std::max(first, static_cast<int>(step.blocks_pruned[i] / entry.rows));
    }
    for (int64_t position = entry.position; position <= last; ++position, ++row) {
      const auto page = static_cast<size_t>(table[static_cast<size_t>(
          entry.slot * kv_.view.shape.max_pages + position / kPageTokens)]);
      const size_t token = page * kPageTokens + static_cast<size_t>(position % kPageTokens);
      for (size_t m = 0; m < d; ++m) {
        stored.q.push_back(step.projection[row * static_cast<size_t>(constants().columns()) + m]);
        stored.k.push_back(key_at(page, token % kPageTokens, token * d + m));
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
  const auto i = static_cast<size_t>(row), d = static_cast<size_t>(constants().shape.head_dim);
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
  return LogSumExp(logits.data(), static_cast<int>(first)) - ExactLse(logits);
}

double DeviceHeads::ExactLse(int s, int64_t row) const { return ExactLse(Logits(s, row, nullptr)); }

double DeviceHeads::ExactLse(const std::vector<double>& logits) const {
  const double keys = LogSumExp(logits.data(), static_cast<int>(logits.size()));
  return constants().shape.sink ? LogAddExp(keys, constants().sink[0]) : keys;
}

int DeviceHeads::EvictedPages(int s, int64_t row) const {
  const StoredRows& rows = stored(s);
  const auto page = static_cast<size_t>(row / kPageTokens);
  if (page == 0) return 0;
  const size_t end = page - 1;
  double c =
      UpperCumulativeGate(rows.page_cum_log_f[end], rows.log_f_offset[page * kPageTokens - 1]);
  c += kSumRounding * std::fabs(c);  // evict.cu
  const double threshold =
      PageThreshold(AcpMode::kCertified, rows.log_denominator_bound[end], c,
                    constants().self_logit_bound[0], constants().max_logit_bound[0]);
  const double log_eps = sequences_[static_cast<size_t>(s)].log_tolerance;
  size_t first = 0;
  while (first < end && MayDrop(rows.log_mass_bound[first], threshold, log_eps)) ++first;
  return static_cast<int>(first);
}

void DeviceHeads::ExpectLostMass(int s) const {
  const StoredRows& rows = stored(s);
  const double log_eps = sequences_[static_cast<size_t>(s)].log_tolerance;
  LostMass most;
  double least_sum = 0, least_log = kNoMass;  // of the masses, however small they are
  for (int64_t row = 0; row < lengths_[static_cast<size_t>(s)]; ++row) {
    const auto pages = static_cast<size_t>(EvictedPages(s, row));
    if (pages == 0) continue;
    const double c = rows.CumulativeGate(row);
    const double rounding =
        RowRounding(constants().shape.head_dim, constants().max_logit_bound[0], c, 0) +
        kWeightSumRounding;
    const double log_mass = LogMassBefore(s, row, pages * kPageTokens);
    least_sum += std::exp(log_mass);
    least_log = std::max(least_log, log_mass);
    most.Add(fox::LogLostMass(rows.log_mass_bound[pages - 1], c, rows.lse[static_cast<size_t>(row)],
                              rounding, log_eps),
             kNoMass);
  }
  const LostMass& lost = lost_[static_cast<size_t>(s)];
  EXPECT_GE(lost.sum, least_sum) << s;
  EXPECT_GE(lost.max_log, least_log) << s;
  // Float32 sums, logarithms and exponentials of numbers up to some hundreds.
  EXPECT_LE(lost.sum, most.sum * (1 + 0x1p-8)) << s;
  EXPECT_LE(lost.max_log, most.max_log + 0x1p-8) << s;
  EXPECT_LE(lost.max_log, log_eps) << s;
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

}  // namespace fox::cuda::testing
