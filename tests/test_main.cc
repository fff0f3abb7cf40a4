// The entry point of a folder's tests. --file=PATH runs the tests of one file alone, which is how
// ctest reports them: by file, each in a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

// A filter of the tests that stand in `file`, given by the end of its path.
std::string TestsOf(const std::string& file) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string path = test.file();
      const bool is_there = path.size() > file.size() && path.ends_with("/" + file);
      if (is_there) filter += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
#ifdef FOX_EMULATED  // such a program cannot start itself
  GTEST_FLAG_SET(death_test_style, "fast");
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
#endif
  constexpr std::string_view kFile = "--file=";
  const std::string_view argument = argc > 1 ? argv[1] : "";
  // A death test starts the program again, with a filter of its own.
  if (argument.starts_with(kFile) && GTEST_FLAG_GET(filter) == "*") {
    const std::string filter = TestsOf(std::string(argument.substr(kFile.size())));
    if (filter.empty()) {
      std::fprintf(stderr, "no test is in %s\n", argv[1]);
      return 1;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}
