// PrefixTree: a node without children, snapshot and computing sequence is removed. The simulation
// checks Find.
#include "engine/schedule/prefix_tree.h"

#include <gtest/gtest.h>

#include <numeric>

namespace fox {
namespace {

using Node = PrefixTree::Node;

std::vector<int32_t> Tokens(int32_t first, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

const PrefixTree::CacheNamespace kRealm{"", -10};

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

}  // namespace
}  // namespace fox
