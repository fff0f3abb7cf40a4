// The audit against a broken promise, planted by bounds that are too small.
#include "kernels/cpu/mass_audit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "tests/kernels/head_sequence.h"

namespace fox::testing {
namespace {

// Runs heads of several gates; their bounds on logits are `share` of the true ones.
HeadOutputs RunWithBounds(const std::shared_ptr<MassAudit>& audit, DType dtype, double share) {
  HeadInputs inputs = RandomInputs({4, 2, 32}, 700, 1, {0, 1, 2, 3});
  SetBounds(inputs, dtype);
  for (float& a : inputs.bound_diagonal) a *= static_cast<float>(share);
  for (double& b : inputs.self_logit_bound) b *= share;
  CpuOps ops({.threads = 1, .audit = audit});
  return RunHeads(ops, inputs,
                  {.dtype = dtype, .acp = AcpMode::kCertified, .chunks = {200, 1, 63}});
}

TEST(MassAuditTest, HonestBoundsPass) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kE4M3}) {
    SCOPED_TRACE(::testing::Message() << NameOf(dtype));
    const auto audit = std::make_shared<MassAudit>(MassAudit::OnBreach::kStop);
    const HeadOutputs outputs = RunWithBounds(audit, dtype, 1);
    EXPECT_GT(outputs.pages_evicted, 0);
    for (const double mass : outputs.max_log_evicted_mass) EXPECT_LE(mass, -10);
    EXPECT_GT(audit->rows_checked(), 0);
    EXPECT_LE(audit->max_excess(), 0);
    EXPECT_GT(audit->max_excess(), -100);
  }
}

TEST(MassAuditTest, SeesABoundThatIsTooSmall) {
  for (DType dtype : {DType::kBF16, DType::kE4M3}) {
    SCOPED_TRACE(::testing::Message() << NameOf(dtype));
    const auto audit = std::make_shared<MassAudit>(MassAudit::OnBreach::kRecord);
    RunWithBounds(audit, dtype, 0.01);
    EXPECT_GT(audit->max_excess(), 0);
  }
}

TEST(MassAuditDeathTest, StopsTheProcess) {
  const auto audit = std::make_shared<MassAudit>(MassAudit::OnBreach::kStop);
  EXPECT_DEATH(RunWithBounds(audit, DType::kBF16, 0.01), "check failed");
}

// The audited mass is the definition's: full attention minus the attention that the row saw.
void ExpectTheLossInTheDenominator(bool sink) {
  HeadShape shape{1, 1, 16};
  shape.sink = sink;
  HeadInputs inputs = RandomInputs(shape, 640, 2, {1});
  if (sink) inputs.sink = {9};
  SetBounds(inputs);
  const auto audit = std::make_shared<MassAudit>(MassAudit::OnBreach::kRecord);
  CpuOps ops({.threads = 1, .audit = audit});
  RunOptions options{.chunks = {64}};
  const HeadOutputs full = RunHeads(ops, inputs, options);
  EXPECT_EQ(audit->rows_checked(), 0);
  options.acp = AcpMode::kCertified;
  const HeadOutputs pruned = RunHeads(ops, inputs, options);
  double worst = 0;
  for (size_t i = 0; i < full.lse.size(); ++i) {
    worst = std::max(worst, -std::expm1(pruned.lse[i] - full.lse[i]));
  }
  EXPECT_NEAR(std::log(worst) + 10, audit->max_excess(), 1e-6);
}

TEST(MassAuditTest, EqualsTheLossInTheDenominator) {
  for (const bool sink : {false, true}) ExpectTheLossInTheDenominator(sink);
}

}  // namespace
}  // namespace fox::testing
