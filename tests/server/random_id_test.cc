// Request ids have the form of a version 4 UUID and differ.
#include "server/random_id.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace fox {
namespace {

TEST(RandomIdTest, UuidsAreWellFormedAndDistinct) {
  const std::string form = "xxxxxxxx-xxxx-4xxx-vxxx-xxxxxxxxxxxx";
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = RandomUuid();
    ASSERT_EQ(id.size(), form.size());
    for (size_t k = 0; k < form.size(); ++k) {
      const std::string allowed = form[k] == 'x'   ? "0123456789abcdef"
                                  : form[k] == 'v' ? "89ab"
                                                   : std::string(1, form[k]);
      EXPECT_NE(allowed.find(id[k]), std::string::npos) << id;
    }
    seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

}  // namespace
}  // namespace fox
