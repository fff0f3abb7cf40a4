// The scalar functions of the pruning decisions.
#include "kernels/paging/acp.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/core/e4m3.h"

namespace fox {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(AcpTest, LogAddExp) {
  EXPECT_DOUBLE_EQ(LogAddExp(0, 0), std::log(2));
  EXPECT_DOUBLE_EQ(LogAddExp(-kInfinity, 3), 3);
  EXPECT_DOUBLE_EQ(LogAddExp(3, -kInfinity), 3);
  EXPECT_EQ(LogAddExp(-kInfinity, -kInfinity), -kInfinity);
  EXPECT_DOUBLE_EQ(LogAddExp(1000, 0), 1000);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double other : {-kInfinity, -3.0, 0.0, 3.0, kInfinity, nan}) {
    EXPECT_TRUE(std::isnan(LogAddExp(nan, other))) << other;
    EXPECT_TRUE(std::isnan(LogAddExp(other, nan))) << other;
  }
}

TEST(AcpTest, LogForgetGateIsStableAndClamped) {
  EXPECT_DOUBLE_EQ(LogForgetGate(0, -128), -std::log(2));
  EXPECT_NEAR(LogForgetGate(40, -128), -std::exp(-40), 1e-30);
  EXPECT_EQ(LogForgetGate(1e6, -128), 0);
  EXPECT_DOUBLE_EQ(LogForgetGate(-50, -128), -50);
  EXPECT_EQ(LogForgetGate(-1e6, -128), -128);
  EXPECT_EQ(MinLogGate(10), -128);
  EXPECT_EQ(MinLogGate(100), -240);
  EXPECT_EQ(MinLogGate(kInfinity), -128);
}

TEST(AcpTest, NanKeeps) {
  EXPECT_TRUE(MayDrop(-20, 0, -10));
  EXPECT_FALSE(MayDrop(-10, 0, -10));  // the slack is not paid
  EXPECT_FALSE(MayDrop(std::nan(""), 0, -10));
  EXPECT_FALSE(MayDrop(-20, std::nan(""), -10));
  EXPECT_FALSE(MayDrop(-20, 0, -kInfinity));
}

TEST(AcpTest, SelfLogitBoundIsWidenedUnderRotationUpToU) {
  for (const DType kv : {DType::kBF16, DType::kE4M3}) {
    SCOPED_TRACE(::testing::Message() << NameOf(kv));
    const bool e4m3 = kv == DType::kE4M3;
    const double u = MaxLogitBound(64, 2, 3, kv), own = 8 * ProductInflation(kv);
    EXPECT_DOUBLE_EQ(u, 48 * kProductInflation * (e4m3 ? 17.0 / 16 : 1));
    EXPECT_DOUBLE_EQ(SelfLogitBound(64, 1, 2, 3, false, kv), own + (e4m3 ? u / 8192 : 0));
    EXPECT_DOUBLE_EQ(SelfLogitBound(64, 1, 2, 3, true, kv), own + (e4m3 ? 5 : 1) * u / 64);
    EXPECT_DOUBLE_EQ(SelfLogitBound(64, 6, 2, 3, true, kv), u);
  }
}

TEST(AcpTest, ThresholdIsTheLesserBound) {
  EXPECT_NEAR(PageThreshold(AcpMode::kPaper, -50, -20, 3, 4), -12, 1e-8);
  EXPECT_DOUBLE_EQ(PageThreshold(AcpMode::kCertified, -15, -20, 3, 4), -17);
  EXPECT_DOUBLE_EQ(PageThreshold(AcpMode::kCertified, -18, -20, 3, 4), -18);
  EXPECT_DOUBLE_EQ(PageThreshold(AcpMode::kCertified, -18, -20, kInfinity, kInfinity), -18);
  EXPECT_EQ(PageThreshold(AcpMode::kCertified, kInfinity, -20, kInfinity, kInfinity), kInfinity);
}

// Random cases where `paper` just drops a page, with all roundings that `certified` pays for in log
// M, H and B.
TEST(AcpTest, CertifiedDropsWhatPaperDrops) {
  std::mt19937_64 rng(5);
  const auto any = [&rng](double low, double high) {  // by orders of magnitude
    return low * std::pow(high / low, static_cast<double>(rng() >> 11) * 0x1p-53);
  };
  for (int i = 0; i < 100000; ++i) {
    const double last = std::floor(any(64, 1 << 20)) - 1, u = any(1e-3, 1e6);
    const double c_last = i % 8 == 0 ? 0 : -any(1e-6, 1e9);
    const double c = c_last - (std::log(last + 1) + 2 * u + any(1e-3, 100));
    const double paper = PaperLogMassBound(last, c_last);
    const double t = PageThreshold(AcpMode::kPaper, kInfinity, c, u, u);
    double log_eps = paper + t + kAcpSlack;
    while (!MayDrop(paper, t, log_eps)) log_eps = std::nextafter(log_eps, kInfinity);
    const double log_mass = std::log(last + 1) + (i % 2 == 0 ? any(1e-3, 1) * u : 2 * u);
    // By a key, or by a sink.
    const double b = i % 5 == 0 ? -any(1e-3, 1e6) : i % 3 == 0 ? any(0.1, 1) * u : u;
    EXPECT_TRUE(MayDrop(CertifiedLogMassBound(log_mass, last, c_last, u),
                        PageThreshold(AcpMode::kCertified, kInfinity, c, b, u), log_eps))
        << last << " " << u << " " << c_last << " " << c;
  }
}

// Unit roundoff of bf16 is 2^-8: three roundings of a query, three of each operand of a product.
TEST(AcpTest, InflationsPayForRoundingsToBf16) {
  EXPECT_GE(kKeyNormInflation, std::pow(1 + 0x1p-8, 3));
  EXPECT_GE(kProductInflation, std::pow(1 + 0x1p-8, 6));
  EXPECT_GE(kRotationRounding, std::pow(1 + 0x1p-8, 2) - 1);
}

// Rows of 256 keys, all but one of which may be small, at the places where rounding is at its
// worst.
TEST(AcpTest, AndForThatToE4M3) {
  std::mt19937_64 rng(6);
  double most = 0, least = 0;
  for (int test = 0; test < 2000; ++test) {
    const float unit = std::ldexp(1.0f, static_cast<int>(rng() % 60) - 30);
    float row[256] = {224.01f * unit};
    for (int i = 1; i < 256; ++i) {
      const auto random = static_cast<int>(rng() % 14);
      row[i] =
          test % 2 == 0 ? std::ldexp(1.0625f, random - 6) : static_cast<float>(random) * 0x1p-10f;
      row[i] *= unit * 1.0001f;
    }
    uint8_t codes[256];
    const int exponent = EncodeE4M3(row, 256, codes);
    double square = 0, small = 0;
    for (int i = 0; i < 256; ++i) {
      const double x = static_cast<double>(row[i]),
                   rounded = static_cast<double>(static_cast<float>(E4M3Value(codes[i], exponent)));
      const double error = std::abs(rounded - x);
      if ((codes[i] & 0x78) == 0) {
        small += error * error;
      } else {
        most = std::max(most, error / x);
      }
      square += x * x;
    }
    least = std::max(least, std::sqrt(small / square));
  }
  EXPECT_LE(most, kE4M3Rounding);
  EXPECT_GE(most, 0.9 * kE4M3Rounding);
  EXPECT_LE(least, kE4M3LeastRounding);
  EXPECT_GE(least, kE4M3LeastRounding / 4);
}

TEST(AcpTest, MassIsNeverBoundedWorseThanByTheLength) {
  EXPECT_NEAR(CertifiedLogMassBound(3, 63, -20, 4), 23, 1e-8);
  EXPECT_NEAR(CertifiedLogMassBound(30, 63, -20, 4), std::log(64) + 24, 1e-8);
  EXPECT_NEAR(CertifiedLogMassBound(30, 63, -20, kInfinity), 50, 1e-8);
  EXPECT_TRUE(std::isnan(CertifiedLogMassBound(std::nan(""), 63, -20, 4)));
}

TEST(AcpTest, OnlyNumbersBoundADenominator) {
  EXPECT_NEAR(LogDenominatorBound(kInfinity, -20, 3, 1), -17, 1e-8);
  EXPECT_NEAR(LogDenominatorBound(kInfinity, -20, 3, std::exp(2.0)), -19, 1e-8);
  EXPECT_EQ(LogDenominatorBound(-19, -20, 3, 1), -19);
  EXPECT_EQ(LogDenominatorBound(-19, -20, std::nan(""), 1), -19);
  EXPECT_EQ(LogDenominatorBound(-19, -20, -kInfinity, 1), -19);  // of products that overflowed
  EXPECT_EQ(LogDenominatorBound(-19, -20, -30, 0), -19);
  EXPECT_EQ(LogDenominatorBound(-19, -20, -3000, 0x1p-1000), -19);  // its terms were rounded
}

TEST(AcpTest, RowsPayForTheirOwnRounding) {
  const double rounding = RowRounding(64, 1e6, -5, -2);
  EXPECT_GT(rounding, 8);
  EXPECT_TRUE(MayStop(-5, -5, 0, 0, -9.9));
  EXPECT_FALSE(MayStop(-5, -5, 0, rounding, -9.9));
  EXPECT_FALSE(MayStop(-5, -5, 0, RowRounding(64, kInfinity, -5, -2), -9.9));
  EXPECT_GT(UpperCumulativeGate(-100, -20), -120);
}

}  // namespace
}  // namespace fox
