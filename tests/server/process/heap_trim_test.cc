// HeapTrim: free memory between small blocks that stay allocated goes back to the system, again
// and again.
#include "server/process/heap_trim.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

namespace fox {
namespace {

double ResidentMib() {
  double whole = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> whole >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

using Blocks = std::vector<std::unique_ptr<char[]>>;

// Allocates small blocks and frees all but each hundredth, which `stay` keeps.
void Flood(size_t mebibytes, Blocks* stay) {
  constexpr size_t kBlock = 1000;
  Blocks go;
  for (size_t i = 0; i < (mebibytes << 20) / kBlock; ++i) {
    auto block = std::make_unique<char[]>(kBlock);
    std::memset(block.get(), 1, kBlock);
    (i % 100 == 0 ? *stay : go).push_back(std::move(block));
  }
}

TEST(HeapTrimTest, AFloodThatIsOverIsNotResidentAndLittleIsKept) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "not the memory of the program";
#endif
  HeapTrim trim;
  trim.Check(100);
  double before = ResidentMib();
  Blocks stay;
  for (int flood = 1; flood <= 3; ++flood) {
    SCOPED_TRACE(flood);
    const double now = 100 + flood * HeapTrim::kSecondsBetweenChecks;
    Flood(100, &stay);
    ASSERT_GT(ResidentMib(), before + 60);  // there is memory to trim
    trim.Check(now - 0.1);
    EXPECT_GT(ResidentMib(), before + 60);  // too soon after the last check
    trim.Check(now);
    EXPECT_LT(ResidentMib(), before + 30);
  }
  Flood(10, &stay);
  before = ResidentMib();
  trim.Check(200);
  EXPECT_GT(ResidentMib(), before - 1);
}

}  // namespace
}  // namespace fox
