// PrefixTree: found by tokens alone, kept apart by realm, forgotten when nothing hangs on a node.
#include "engine/schedule/prefix_tree.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

namespace fox {
namespace {

using Node = PrefixTree::Node;

std::vector<int32_t> Tokens(int32_t first, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

const PrefixTree::Realm kRealm{"", -10};

TEST(PrefixTreeTest, OnlyWholeBlocksWithinTheLimitCount) {
  PrefixTree tree;
  const auto tokens = Tokens(0, 300);
  EXPECT_TRUE(tree.Find(kRealm, tokens, 63, true).empty());
  EXPECT_TRUE(tree.empty());
  const std::vector<Node*> path = tree.Find(kRealm, tokens, 255, true);
  ASSERT_EQ(path.size(), 3u);
  EXPECT_EQ(path.back()->tokens, 192);
  EXPECT_EQ(tree.Find(kRealm, tokens, 300), path);
  EXPECT_EQ(tree.Find(kRealm, tokens, 191).size(), 2u);
  EXPECT_EQ(tree.Find(kRealm, tokens, 192, true), path);
}

TEST(PrefixTreeTest, ATokenThatDiffersEndsWhatIsFound) {
  PrefixTree tree;
  const auto tokens = Tokens(0, 256);
  const std::vector<Node*> path = tree.Find(kRealm, tokens, 256, true);
  for (const size_t at : {0u, 63u, 64u, 200u, 255u}) {
    auto other = tokens;
    other[at] = -1;
    EXPECT_EQ(tree.Find(kRealm, other, 256).size(), at / 64) << at;
  }
  // The same block behind another beginning is another node.
  auto moved = Tokens(64, 128);
  EXPECT_TRUE(tree.Find(kRealm, moved, 128).empty());
}

TEST(PrefixTreeTest, RealmsShareNothing) {
  PrefixTree tree;
  const auto tokens = Tokens(0, 64);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const PrefixTree::Realm realms[] = {{"", -10}, {"a", -10}, {"", -11}, {"", kNone}, {"a", kNone}};
  std::vector<Node*> nodes;
  for (const PrefixTree::Realm& realm : realms) {
    EXPECT_TRUE(tree.Find(realm, tokens, 64).empty());
    nodes.push_back(tree.Find(realm, tokens, 64, true).front());
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    EXPECT_EQ(tree.Find(realms[i], tokens, 64), std::vector<Node*>{nodes[i]});
    for (size_t j = 0; j < i; ++j) EXPECT_NE(nodes[i], nodes[j]);
  }
}

TEST(PrefixTreeTest, NodesGoWhenNothingHangsOnThem) {
  PrefixTree tree;
  const auto tokens = Tokens(0, 320);
  const std::vector<Node*> path = tree.Find(kRealm, tokens, 320, true);
  path[1]->snapshot = 7;
  auto other = tokens;
  other[130] = -1;
  Node* const branch = tree.Find(kRealm, other, 192, true).back();
  tree.Prune(path[3]);  // has a child
  EXPECT_EQ(tree.Find(kRealm, tokens, 320).size(), 5u);
  tree.Prune(path[4]);
  EXPECT_EQ(tree.Find(kRealm, tokens, 320).size(), 2u);
  EXPECT_EQ(tree.Find(kRealm, other, 320).back(), branch);
  path[1]->snapshot = -1;
  tree.Prune(path[1]);
  EXPECT_EQ(tree.Find(kRealm, tokens, 320).size(), 2u);
  tree.Prune(branch);
  EXPECT_TRUE(tree.empty());
}

// A path is as deep as a sequence is long.
TEST(PrefixTreeTest, AMillionTokensAreForgottenWithoutRecursion) {
  const auto tokens = Tokens(0, 1 << 20);
  PrefixTree tree;
  EXPECT_EQ(tree.Find(kRealm, tokens, 1 << 20, true).size(), size_t{1} << 14);
}

}  // namespace
}  // namespace fox
