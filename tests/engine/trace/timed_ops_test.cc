// TimedOps: calls reach the other Ops, within the clock's brackets.
#include "engine/trace/timed_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/cpu_ops.h"

namespace fox {
namespace {

using ::testing::ElementsAre;

// Notes what it is told.
class NotingClock : public OpClock {
 public:
  void Start() override { ++open; }
  void Stop(const char* operation) override {
    --open;
    operations.emplace_back(operation);
  }

  int open = 0;
  std::vector<std::string> operations;
};

std::unique_ptr<Ops> MakeCpuOps() {
  return std::make_unique<CpuOps>(CpuOptions{DType::kF32, true, 1});
}

// Copies two rows, in the other order; whether they arrived.
bool CopiesAndGathers(Ops& ops) {
  const float rows[] = {1, 2, 3, 4};
  const int64_t order[] = {1, 0};
  const Buffer in = ops.Allocate(sizeof(rows)), out = ops.Allocate(sizeof(rows));
  ops.CopyToDevice(rows, sizeof(rows), in.data(), nullptr);
  ops.GatherRows({in.data(), DType::kF32, 2, 2, 2}, order, {out.data(), DType::kF32, 2, 2, 2},
                 nullptr);
  float result[4];
  ops.CopyToHost(out.data(), sizeof(result), result, nullptr);
  return result[0] == 3 && result[1] == 4 && result[2] == 1 && result[3] == 2;
}

TEST(TimedOpsTest, BracketsEachOperationThatItForwards) {
  const auto clock = std::make_shared<NotingClock>();
  TimedOps ops(MakeCpuOps(), clock);
  EXPECT_TRUE(CopiesAndGathers(ops));
  EXPECT_THAT(clock->operations, ElementsAre("copy", "gather_rows", "copy"));
  EXPECT_EQ(clock->open, 0);
  EXPECT_EQ(ops.Description(), MakeCpuOps()->Description());
}

}  // namespace
}  // namespace fox
