// The arithmetic of sampling, with the same bits on the host and on the device: the exponential
// race, the weights of top_p and the floor of min_p. Every operation is rounded by itself; nothing
// may be contracted to a fused multiply-add.
//
// The race: tokens arrive after times E_i / p_i, where the E_i are independent exponentials of mean
// 1; the first is token i with probability p_i (Efraimidis and Spirakis, "Weighted random sampling
// with a reservoir", IPL 97, 2006). With p_i ~ exp(x_i / T) that is the largest score
// x_i - T log(E_i). A score does not depend on other tokens: no sum, no order, and a small change
// of the logits changes the token only if the two best scores are as close as that.
//
// E = -log(1 - u), u = (w + 1/2) / 2^32 for a Philox word w: u is never 0 or 1, and 2^-33 <= E <
// 23. Because u lies on a grid of step h = 2^-32, a token is sampled with probability h / (2 sinh(h
// / 2p)) instead of p: nearly p for p >> h, nearly never for p < h / 32, and at most 0.12 h less.
// For 50,000 tokens that is 1.4e-6 in all, less than rounding the logits to float32 changes (24
// bits: 3.6e-4).
#pragma once

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/philox.h"

namespace fox {

// --- Operations of one rounding ---

template <typename T>
FOX_HOST_DEVICE inline T RoundedProduct(T a, T b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == sizeof(double))
    return __dmul_rn(a, b);
  else
    return __fmul_rn(a, b);
#else
  return a * b;  // compiled with -ffp-contract=off
#endif
}

// --- Logarithms ---

// A positive normal number 2^exponent * (1 + fraction), fraction in [sqrt(1/2) - 1, sqrt(2) - 1).
struct BinaryScale {
  float exponent, fraction;
};

FOX_HOST_DEVICE inline BinaryScale BinaryScaleOf(float x) {
  constexpr int32_t kSqrtHalf = 0x3f3504f3;
  const int32_t exponent = (BitCast<int32_t>(x) - kSqrtHalf) >> 23;
  return {static_cast<float>(exponent),
          BitCast<float>(BitCast<int32_t>(x) - (exponent << 23)) - 1.0f};
}

// The logarithm to base 2 of the number: within 2^-21 of itself where the exponent is 0, else
// within 2^-22 and its rounding. The polynomial is the minimax one of log2(1 + f) / f in relative
// error (1.7e-7).
FOX_HOST_DEVICE inline float Log2(const BinaryScale& x) {
  const float f = x.fraction;
  float p = -0.14581161737442017f;
  p = RoundedProduct(p, f) + 0.23404233157634735f;
  p = RoundedProduct(p, f) - 0.24887686967849731f;
  p = RoundedProduct(p, f) + 0.2870987057685852f;
  p = RoundedProduct(p, f) - 0.3602396249771118f;
  p = RoundedProduct(p, f) + 0.48092323541641235f;
  p = RoundedProduct(p, f) - 0.7213528156280518f;
  p = RoundedProduct(p, f) + 1.442694902420044f;
  return x.exponent + RoundedProduct(p, f);
}

inline constexpr float kLogOf2 = 0.6931471805599453f;

// --- The race ---

// 128 neighbouring ids share 32 Philox blocks of four words: id i has word i / 32 % 4 of block
// i / 128 * 32 + i % 32, so that 32 neighbours need no word twice.
inline constexpr int32_t kRaceLanes = 32;
inline constexpr int32_t kRaceGroup = 4 * kRaceLanes;

FOX_HOST_DEVICE constexpr PhiloxCounter RaceWords(uint64_t seed, uint64_t position, int32_t block) {
  return Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                     static_cast<uint32_t>(block), 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// E / log(2) for a Philox word.
FOX_HOST_DEVICE inline float RaceTime(uint32_t word) {
  // u or 1 - u, whichever is at most 1/2: exact where it is small.
  const int32_t upper = static_cast<int32_t>(word) >> 31;  // -1 or 0
  const float distance = static_cast<float>(static_cast<int32_t>(word) ^ upper);
  const float small = RoundedProduct(distance + 0.5f, 0x1p-32f);
  const float large = 1.0f - small;
  const BinaryScale rest = BinaryScaleOf(upper != 0 ? small : large);
  // Where 1 - u is near 1, its logarithm is near -u.
  const float minus_small = -small;
  return -Log2({rest.exponent, rest.exponent == 0.0f ? minus_small : rest.fraction});
}

// A token's score is its logit plus this, -T log(E) but for a constant. `scale`: RaceScale(T).
FOX_HOST_DEVICE inline float RaceScale(float temperature) {
  return RoundedProduct(temperature, kLogOf2);
}
FOX_HOST_DEVICE inline float RaceNoise(uint32_t word, float scale) {
  return -RoundedProduct(scale, Log2(BinaryScaleOf(RaceTime(word))));
}
FOX_HOST_DEVICE inline double RaceScore(float logit, float noise) {
  return static_cast<double>(logit) + static_cast<double>(noise);
}

// Bits of a vocabulary id in a key.
FOX_HOST_DEVICE constexpr int IdBits(int64_t vocabulary) {
  int bits = 0;
  for (int64_t last = vocabulary - 1; last > 0; last >>= 1) ++bits;
  return bits;
}

// A token's rank in the race: the higher score, then the lower id. The id replaces the score's last
// bits: 36 remain for 50,000 tokens. Neither 0 nor ~0.
FOX_HOST_DEVICE inline uint64_t RaceKey(double score, int32_t id, int id_bits) {
  const uint32_t ids = (uint32_t{1} << id_bits) - 1;
  const auto bits = BitCast<int64_t>(score);
  const uint64_t order =
      static_cast<uint64_t>(bits ^ ((bits >> 63) & INT64_MAX)) ^ (uint64_t{1} << 63);
  return (order & ~uint64_t{ids}) | (ids - static_cast<uint32_t>(id));
}
FOX_HOST_DEVICE inline int32_t RaceId(uint64_t key, int id_bits) {
  const uint64_t ids = (uint64_t{1} << id_bits) - 1;
  return static_cast<int32_t>(ids - (key & ids));
}

// --- Weights ---

// exp(x) for x <= 0, within 2 ulp; 0 below -87. Branch-free, so loops over it vectorise.
FOX_HOST_DEVICE inline float ExpNonPositive(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  // Rounds to nearest.
  const int32_t n = static_cast<int32_t>(RoundedProduct(clamped, 1.44269504f) - 0.5f);
  const float fn = static_cast<float>(n);
  const float r = (clamped - RoundedProduct(fn, 0.693359375f)) +
                  RoundedProduct(fn, 2.12194440e-4f);  // |r| <= ln(2) / 2
  // The Taylor series: the first term left out is r^8 / 8!, below 5e-9.
  float p = RoundedProduct(1.0f / 5040, r) + 1.0f / 720;
  p = RoundedProduct(p, r) + 1.0f / 120;
  p = RoundedProduct(p, r) + 1.0f / 24;
  p = RoundedProduct(p, r) + 1.0f / 6;
  p = RoundedProduct(p, r) + 0.5f;
  p = RoundedProduct(p, r) + 1.0f;
  p = RoundedProduct(p, r) + 1.0f;
  const float scaled = RoundedProduct(p, BitCast<float>((n + 127) << 23));
  return x < -87.0f ? 0.0f : scaled;
}

FOX_HOST_DEVICE inline double InverseTemperature(float temperature) {
  return 1.0 / static_cast<double>(temperature);
}

// exp((x - largest) * inverse_temperature). In float64 until it is small: even denormal
// temperatures do not overflow.
FOX_HOST_DEVICE inline float Weight(float x, float largest, double inverse_temperature) {
  const double scaled =
      RoundedProduct(static_cast<double>(x) - static_cast<double>(largest), inverse_temperature);
  return ExpNonPositive(static_cast<float>(scaled < -200.0 ? -200.0 : scaled));
}

// Weights as integers, in units of 1 / FixedPointOne: sums are exact, so their order does not
// matter. FixedPointOne is 2^(62 - IdBits(V)): no sum of V weights reaches 2^63, and truncation
// takes less than V units from it.
FOX_HOST_DEVICE constexpr float FixedPointOne(int64_t vocabulary) {
  return static_cast<float>(uint64_t{1} << (62 - IdBits(vocabulary)));
}
FOX_HOST_DEVICE inline uint64_t FixedPointWeight(float weight, float fixed_point_one) {
  return static_cast<uint64_t>(static_cast<int64_t>(RoundedProduct(weight, fixed_point_one)));
}

// The running sum that top_p < 1 asks for, at least 1.
FOX_HOST_DEVICE inline uint64_t TopPSum(float top_p, uint64_t total) {
  const double exact = RoundedProduct(static_cast<double>(top_p), static_cast<double>(total));
  const uint64_t below = static_cast<uint64_t>(static_cast<int64_t>(exact));
  return static_cast<double>(below) < exact || below == 0 ? below + 1 : below;
}

// The least logit that min_p > 0 keeps: one whose weight is min_p. A min_p below the normal floats
// counts as the least of them.
FOX_HOST_DEVICE inline float MinPFloor(float min_p, float temperature, float largest) {
  constexpr float kLeastNormal = 0x1p-126f;
  constexpr double kLowest = -0x1.fffffep127;  // of all floats
  const float log2 = Log2(BinaryScaleOf(min_p < kLeastNormal ? kLeastNormal : min_p));
  const double distance = RoundedProduct(0.6931471805599453, static_cast<double>(log2));
  const double floor =
      static_cast<double>(largest) + RoundedProduct(distance, static_cast<double>(temperature));
  return static_cast<float>(floor < kLowest ? kLowest : floor);
}

}  // namespace fox
