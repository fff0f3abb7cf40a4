// Elements of a mapped tensor, at any alignment, against their definition by the formats.
#include "models/checkpoint/host_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/core/load_element.h"

namespace fox {
namespace {

// sign * 2^(e - 15) * 1.f, subnormals sign * 2^-14 * 0.f: IEEE 754, binary16.
TEST(HostTensorTest, EveryHalfAsAFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
    const int exponent = static_cast<int>(bits >> 10 & 0x1Fu);
    const double fraction = (bits & 0x3FFu) / 1024.0;
    const float got = HalfToFloat(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::signbit(got), sign < 0) << bits;
    if (exponent == 31) {
      EXPECT_EQ(std::isinf(got), fraction == 0) << bits;
      EXPECT_EQ(std::isnan(got), fraction != 0) << bits;
      continue;
    }
    const double wanted =
        exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
    ASSERT_EQ(got, sign * wanted) << bits;
  }
}

// `values` as a tensor whose data begin at an odd address.
template <typename Raw>
struct Unaligned {
  Unaligned(DType dtype, const std::vector<Raw>& values) : bytes(values.size() * sizeof(Raw) + 1) {
    std::memcpy(bytes.data() + 1, values.data(), bytes.size() - 1);
    tensor = {bytes.data() + 1, dtype, {static_cast<int64_t>(values.size())}};
  }
  std::vector<std::byte> bytes;
  HostTensor tensor;
};

template <typename Raw>
void ExpectReads(DType dtype, const std::vector<Raw>& raw, const std::vector<double>& values) {
  const Unaligned<Raw> unaligned(dtype, raw);
  const auto count = static_cast<int64_t>(values.size());
  for (int64_t first = 0; first <= count; ++first) {
    SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(dtype) << " from " << first);
    std::vector<double> wide(values.size() - static_cast<size_t>(first));
    std::vector<float> narrow(wide.size());
    ReadElements(unaligned.tensor, first, count - first, wide.data());
    ReadElements(unaligned.tensor, first, count - first, narrow.data());
    const std::vector<double> rest(values.begin() + first, values.end());
    EXPECT_EQ(wide, rest);
    EXPECT_EQ(narrow, std::vector<float>(rest.begin(), rest.end()));
  }
}

TEST(HostTensorTest, ReadsEveryTypeFromAnyElementOn) {
  ExpectReads<double>(DType::kF64, {1.0 / 3, -2, 1e-300}, {1.0 / 3, -2, 1e-300});
  ExpectReads<float>(DType::kF32, {0.1f, -2, 1e-40f}, {0.1f, -2, 1e-40f});
  ExpectReads<uint16_t>(DType::kBF16, {0x3F80, 0xC0C0, 0x0001}, {1, -6, std::ldexp(1.0, -133)});
  ExpectReads<uint16_t>(DType::kF16, {0x3C00, 0xC600, 0x0001}, {1, -6, std::ldexp(1.0, -24)});
}

// The count runs in blocks of 16384 elements: bad values around their ends.
TEST(HostTensorTest, CountsNonFiniteElements) {
  constexpr size_t kSize = 3 * 16384 + 5;
  std::vector<float> values(kSize, std::numeric_limits<float>::max());
  EXPECT_EQ(CountNonFinite(Unaligned<float>(DType::kF32, values).tensor), 0);
  for (const size_t at : {size_t{0}, size_t{16383}, size_t{16384}, kSize - 1}) {
    values[at] = std::numeric_limits<float>::quiet_NaN();
  }
  values[7] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(CountNonFinite(Unaligned<float>(DType::kF32, values).tensor), 5);
  // All of a block: the count of 16-bit elements is kept in 16 bits within one.
  const std::vector<uint16_t> bad(kSize, 0x7F80);
  EXPECT_EQ(CountNonFinite(Unaligned<uint16_t>(DType::kBF16, bad).tensor),
            static_cast<int64_t>(kSize));
  EXPECT_EQ(CountNonFinite(Unaligned<uint16_t>(DType::kF16, bad).tensor),
            static_cast<int64_t>(kSize));  // a NaN there
  const std::vector<double> one = {1, std::numeric_limits<double>::infinity()};
  EXPECT_EQ(CountNonFinite(Unaligned<double>(DType::kF64, one).tensor), 1);
}

}  // namespace
}  // namespace fox
