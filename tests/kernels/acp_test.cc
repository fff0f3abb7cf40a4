// The scalar functions of the pruning decisions.
#include "kernels/acp.h"

#include <gtest/gtest.h>

#include <random>

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
  const double u = MaxLogitBound(64, 2, 3);
  EXPECT_DOUBLE_EQ(u, 48 * kProductInflation);
  EXPECT_DOUBLE_EQ(SelfLogitBound(64, 1, 2, 3, false), 8 * kProductInflation);
  EXPECT_DOUBLE_EQ(SelfLogitBound(64, 1, 2, 3, true), 8 * kProductInflation + u / 64);
  EXPECT_DOUBLE_EQ(SelfLogitBound(64, 6, 2, 3, true), u);
}

TEST(AcpTest, ThresholdIsTheLesserBound) {
  EXPECT_NEAR(PageThreshold(AcpMode::kPaper, -50, -20, 3, 4), -12, 1e-8);
  EXPECT_DOUBLE_EQ(PageThreshold(AcpMode::kCertified, -15, -20, 3, 4), -17);
  EXPECT_DOUBLE_EQ(PageThreshold(AcpMode::kCertified, -18, -20, 3, 4), -18);
  EXPECT_DOUBLE_EQ(PageThreshold(AcpMode::kCertified, -18, -20, kInfinity, kInfinity), -18);
  EXPECT_EQ(PageThreshold(AcpMode::kCertified, kInfinity, -20, kInfinity, kInfinity), kInfinity);
}

// Where `paper` just drops a page, whatever `certified` pays for in log M, H and B.
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

TEST(AcpTest, MassIsNeverBoundedWorseThanByTheLength) {
  EXPECT_NEAR(CertifiedLogMassBound(3, 63, -20, 4), 23, 1e-8);
  EXPECT_NEAR(CertifiedLogMassBound(30, 63, -20, 4), std::log(64) + 24, 1e-8);
  EXPECT_NEAR(CertifiedLogMassBound(30, 63, -20, kInfinity), 50, 1e-8);
  EXPECT_TRUE(std::isnan(CertifiedLogMassBound(std::nan(""), 63, -20, 4)));
}

TEST(AcpTest, ANanBoundsNoDenominator) {
  EXPECT_NEAR(LogDenominatorBound(kInfinity, -20, 3), -17, 1e-8);
  EXPECT_EQ(LogDenominatorBound(-19, -20, 3), -19);
  EXPECT_EQ(LogDenominatorBound(-19, -20, std::nan("")), -19);
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
