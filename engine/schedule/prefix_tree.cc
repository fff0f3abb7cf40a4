// Walks from block to block. See prefix_tree.h.
#include "engine/schedule/prefix_tree.h"

#include <algorithm>

namespace fox {

PrefixTree::~PrefixTree() {
  std::vector<std::unique_ptr<Node>> left;
  const auto take = [&left](Node* node) {
    for (auto& [block, child] : node->children) left.push_back(std::move(child));
  };
  for (auto& [realm, root] : realms_) take(&root);
  while (!left.empty()) {
    const std::unique_ptr<Node> node = std::move(left.back());
    left.pop_back();
    take(node.get());
  }
}

PrefixTree::Block PrefixTree::BlockAt(const std::vector<int32_t>& tokens, int64_t position) {
  Block block;
  std::copy_n(tokens.begin() + position, kPageTokens, block.begin());
  return block;
}

std::vector<PrefixTree::Node*> PrefixTree::Find(const Realm& realm,
                                                const std::vector<int32_t>& tokens,
                                                int64_t limit) const {
  std::vector<Node*> path;
  const auto root = realms_.find(realm);
  if (root == realms_.end()) return path;
  const Node* node = &root->second;
  for (int64_t position = 0; position + kPageTokens <= limit; position += kPageTokens) {
    const auto child = node->children.find(BlockAt(tokens, position));
    if (child == node->children.end()) break;
    path.push_back(child->second.get());
    node = path.back();
  }
  return path;
}

std::vector<PrefixTree::Node*> PrefixTree::Insert(const Realm& realm,
                                                  const std::vector<int32_t>& tokens,
                                                  int64_t limit) {
  std::vector<Node*> path;
  if (limit < kPageTokens) return path;
  Node* node = &realms_[realm];
  for (int64_t position = 0; position + kPageTokens <= limit; position += kPageTokens) {
    const Block block = BlockAt(tokens, position);
    std::unique_ptr<Node>& child = node->children[block];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      child->parent = node;
      child->block = block;
      child->tokens = position + kPageTokens;
    }
    node = child.get();
    path.push_back(node);
  }
  return path;
}

void PrefixTree::Prune(Node* node) {
  while (node->parent != nullptr && node->children.empty() && node->snapshot < 0 &&
         node->computing == nullptr) {
    Node* const parent = node->parent;
    const Block block = node->block;  // the node goes with its key
    parent->children.erase(block);
    node = parent;
  }
  if (node->parent != nullptr || !node->children.empty()) return;
  for (auto realm = realms_.begin(); realm != realms_.end(); ++realm) {
    if (&realm->second == node) {
      realms_.erase(realm);
      return;
    }
  }
}

}  // namespace fox
