// Request ids have the form of a version 4 UUID, differ, and cannot be predicted.
#include "server/process/random_id.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>

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

// True if the generator is a Mersenne Twister: 312 outputs determine its state and the next output.
template <class Generator>
bool FollowsMersenneTwister(Generator&& next) {
  const auto temper = [](uint64_t x) {
    x ^= (x >> 29) & 0x5555555555555555;
    x ^= (x << 17) & 0x71d67fffeda60000;
    x ^= (x << 37) & 0xfff7eee000000000;
    return x ^ (x >> 43);
  };
  const auto untemper = [](uint64_t y) {
    y ^= y >> 43;
    y ^= (y << 37) & 0xfff7eee000000000;
    uint64_t x = y;
    for (int i = 0; i < 4; ++i) x = y ^ ((x << 17) & 0x71d67fffeda60000);
    y = x;
    for (int i = 0; i < 3; ++i) x = y ^ ((x >> 29) & 0x5555555555555555);
    return x;
  };
  std::array<uint64_t, 312> state{};
  for (uint64_t& word : state) word = untemper(next());
  const uint64_t joined = (state[0] & 0xffffffff80000000) | (state[1] & 0x7fffffff);
  return next() ==
         temper(state[156] ^ (joined >> 1) ^ ((joined & 1) != 0 ? 0xb5026f5aa96619e9 : 0));
}

TEST(RandomIdTest, OutputsDoNotTellTheNextOne) {
  EXPECT_TRUE(FollowsMersenneTwister(std::mt19937_64(7)));  // the test itself
  EXPECT_FALSE(FollowsMersenneTwister(RandomSeed));
}

}  // namespace
}  // namespace fox
