// Walks from block to block. See prefix_tree.h.
#include "engine/schedule/prefix_tree.h"

#include <algorithm>

namespace fox {

std::vector<PrefixTree::Node*> PrefixTree::Find(const Realm& realm,
                                                const std::vector<int32_t>& tokens, int64_t limit,
                                                bool insert) {
  std::vector<Node*> path;
  if (limit < kPageTokens || (!insert && roots_.count(realm) == 0)) return path;
  Node* node = &roots_[realm];
  while (node->tokens + kPageTokens <= limit) {
    std::pair<Node*, Block> key = {node, {}};
    std::copy_n(tokens.begin() + node->tokens, kPageTokens, key.second.begin());
    auto child = nodes_.find(key);
    if (child == nodes_.end()) {
      if (!insert) break;
      child = nodes_.emplace(key, Node{node, key.second, node->tokens + kPageTokens}).first;
      ++node->children;
    }
    path.push_back(node = &child->second);
  }
  return path;
}

void PrefixTree::Prune(Node* node) {
  while (node->children == 0 && node->snapshot < 0 && node->computing == nullptr) {
    Node* const parent = node->parent;
    if (parent == nullptr) {
      std::erase_if(roots_, [node](const auto& root) { return &root.second == node; });
      return;
    }
    nodes_.erase({parent, Block(node->block)});
    --parent->children;
    node = parent;
  }
}

}  // namespace fox
