// SampleBatch: rows of logits on the device with their sampling parameters, and the comparison of a
// sample with the host's. For tests of sampling on the device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "engine/request/sampler.h"
#include "tests/kernels/cuda/device_array.h"

namespace fox::cuda {

using testing::DeviceArray;
using Random = std::mt19937_64;

inline constexpr int32_t kPoisoned = -1;
inline constexpr int32_t kMaxSlots = 211;  // a prime above every number of sampled rows

template <typename T>
T OneOf(Random& random, const std::vector<T>& choices) {
  return choices[random() % choices.size()];
}

inline int32_t SlotOf(size_t row) { return static_cast<int32_t>((row * 7 + 3) % kMaxSlots); }

enum class Logits { kNormal, kWide, kTied, kEqual, kZeros, kExtreme, kPeaked, kTiny, kBad, kCount };

inline std::vector<float> MakeLogits(Logits kind, int32_t vocabulary, Random& random) {
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> row(static_cast<size_t>(vocabulary));
  for (float& x : row) {
    x = normal(random);
    if (kind == Logits::kWide) x *= 10;
    if (kind == Logits::kTied) x = std::round(x * 2) / 2;
    if (kind == Logits::kEqual) x = -3.25f;
    if (kind == Logits::kZeros) x = x > 2 ? -1.0f : (x > 0 ? 0.0f : -0.0f);
    if (kind == Logits::kExtreme) x = std::clamp(x * 1e38f, -3.4e38f, 3.4e38f);
    if (kind == Logits::kTiny) x *= 1e-42f;
  }
  const size_t at = random() % row.size();
  if (kind == Logits::kPeaked) row[at] = 30.0f;
  if (kind == Logits::kBad) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    row[at] = OneOf<float>(random, {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")});
  }
  return row;
}

// Half of the rows have one filter or none, the others any combination.
inline SampleRow MakeRow(int32_t vocabulary, int32_t slot, Random& random) {
  SampleRow how;
  how.slot = slot;
  how.temperature = OneOf<float>(random, {0, 1, 1, 0.7f, 2, 0.1f, 100, 1e-3f, 1e-45f});
  const uint64_t filters = random() % 2 == 0 ? uint64_t{1} << (random() % 4) : random() % 8;
  if (filters & 1) {
    how.top_k = OneOf<int32_t>(
        random, {1, 2, 20, 50, 127, 128, 129, 1000, vocabulary - 1, vocabulary, vocabulary + 1});
  }
  if (filters & 2) {
    how.top_p = OneOf<float>(random, {1e-9f, 0.1f, 0.5f, 0.9f, 0.95f, 0.99f, 0.999999f});
  }
  if (filters & 4) how.min_p = OneOf<float>(random, {1e-30f, 1e-3f, 0.02f, 0.1f, 0.5f, 1.0f});
  how.logprobs = OneOf<int32_t>(random, {-1, -1, 0, 1, 5, kMaxSampledLogprobs});
  how.seed = random();
  how.position = random() % 3 == 0 ? random() : random() % 1000;
  return how;
}

// A batch on the device with rows `stride` apart and NaN between them.
struct SampleBatch {
  SampleBatch(size_t count, int32_t vocab, int32_t padding)
      : vocabulary(vocab),
        stride(vocab + padding),
        rows(count),
        logits(count * static_cast<size_t>(stride), std::numeric_limits<float>::quiet_NaN()),
        device_rows(count),
        device_logits(logits.size()),
        sampled(count),
        sampled_tokens(static_cast<size_t>(kMaxSlots)),
        penalty_state(static_cast<size_t>(kMaxSlots) * static_cast<size_t>(vocab)),
        masks(count * static_cast<size_t>(MaskWords(vocab))),
        device_masks(masks.size()) {}

  const float* row_logits(size_t row) const {
    return logits.data() + row * static_cast<size_t>(stride);
  }
  void SetLogits(size_t row, const std::vector<float>& values) {
    std::copy(values.begin(), values.end(),
              logits.begin() + static_cast<std::ptrdiff_t>(row * static_cast<size_t>(stride)));
  }
  // The mask of a row; null: it has none.
  const uint32_t* mask(size_t row) const {
    const int32_t at = rows[row].logits_processor.mask;
    return at < 0 ? nullptr : masks.data() + at * MaskWords(vocabulary);
  }
  // Few tokens of the row may follow, or most; now and then none.
  void SetMask(size_t row, Random& random) {
    const auto words = static_cast<size_t>(MaskWords(vocabulary));
    rows[row].logits_processor.on = true;
    rows[row].logits_processor.mask = static_cast<int32_t>(rows.size() - 1 - row);
    const uint64_t kind = random() % 8;
    for (size_t i = (rows.size() - 1 - row) * words, n = 0; n < words; ++i, ++n) {
      const auto bits = static_cast<uint32_t>(random());
      masks[i] = kind < 4 ? bits : kind == 7 ? 0 : random() % 50 == 0 ? bits & (bits >> 16) : 0;
    }
  }
  void Upload() {
    device_masks.CopyFrom(masks);
    device_rows.CopyFrom(rows);
    device_logits.CopyFrom(logits);
    sampled.Fill(testing::kPoison);
    sampled_tokens.Fill(testing::kPoison);
  }
  // Parameters that sample the rows with a mask, or the rows without.
  SampleParams params(bool masked = false) const {
    const MatrixView view{device_logits.data(), DType::kF32, static_cast<int64_t>(rows.size()),
                          vocabulary, stride};
    return {view,
            device_rows.data(),
            sampled.data(),
            sampled_tokens.data(),
            penalty_state.data(),
            masked ? device_masks.data() : nullptr};
  }

  int32_t vocabulary, stride;
  std::vector<SampleRow> rows;
  std::vector<float> logits;
  DeviceArray<SampleRow> device_rows;
  DeviceArray<float> device_logits;
  DeviceArray<SampleRecord> sampled;
  DeviceArray<int32_t> sampled_tokens;
  DeviceArray<TokenPenaltyState> penalty_state;  // Upload leaves them as they are
  std::vector<uint32_t> masks;                   // [count, MaskWords]
  DeviceArray<uint32_t> device_masks;
};

inline SamplingParams ToSampling(const SampleRow& how) {
  SamplingParams params;
  params.temperature = how.temperature;
  params.top_p = how.top_p;
  params.min_p = how.min_p;
  params.top_k = how.top_k;
  params.logprobs = how.logprobs;
  params.seed = how.seed;
  return params;
}

// Weights are within 2^-22 of themselves on both sides, so their sums' logarithms differ by less
// than 2^-21; float32 rounds each result by 2^-24 of itself.
inline void ExpectLogprob(float got, float want) {
  if (got == want) return;  // both may be -infinity
  EXPECT_LE(std::abs(static_cast<double>(got) - static_cast<double>(want)),
            0x1.0p-21 + std::abs(static_cast<double>(want)) * 0x1.0p-23)
      << got << " instead of " << want;
}

inline void ExpectLogprobs(const SampleRecord& got, const SampledToken& want) {
  ExpectLogprob(got.logprob, want.logprob);
  EXPECT_EQ(got.rank, want.rank);
  for (size_t i = 0; i < kMaxSampledLogprobs; ++i) {
    if (i < want.top.size()) {
      EXPECT_EQ(got.top_ids[i], want.top[i].id) << "alternative " << i;
      ExpectLogprob(got.top_logprobs[i], want.top[i].logprob);
    } else {
      EXPECT_EQ(got.top_ids[i], kPoisoned) << "alternative " << i << " was not asked for";
    }
  }
}

// Compares a sample with the host's: the token, always, and its log-probabilities.
inline void ExpectSample(const SampleRecord& got, const absl::StatusOr<SampledToken>& want,
                         const SampleRow& how) {
  if (!want.ok()) {
    const bool numerical = want.status() == absl::InternalError("numerical failure");
    EXPECT_EQ(got.status, numerical ? SampleStatus::kNotFinite : SampleStatus::kAllMasked);
    EXPECT_EQ(got.id, 0);
    return;
  }
  ASSERT_EQ(got.status, SampleStatus::kSampled);
  ASSERT_EQ(got.id, want->id);
  if (how.logprobs >= 0) ExpectLogprobs(got, *want);
}

}  // namespace fox::cuda
