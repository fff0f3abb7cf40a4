// PrefixTree: the known prefixes, as a tree. A node is a block of 64 tokens after its parent's
// block; each root is a namespace that shares nothing with the others. Nodes are found by all their
// tokens, never by a hash alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

struct Sequence;

class PrefixTree {
 public:
  using Block = std::array<int32_t, kPageTokens>;
  struct Node {
    Node* parent = nullptr;  // null: a root
    Block block = {};
    int64_t tokens = 0;  // of the prefix that ends with this block
    int64_t children = 0;
    int32_t snapshot = -1;          // slot of the snapshot at its end; -1: none
    Sequence* computing = nullptr;  // the first sequence that computes this block
  };
  // Prefixes are shared only between requests with the same salt and the same log eps.
  using CacheNamespace = std::pair<std::string, double>;

  // The nodes along the longest known prefix of the first `limit` tokens, without the root.
  // `insert`: adds the missing nodes, so that the path has all whole blocks.
  std::vector<Node*> Find(const CacheNamespace& cache_namespace, const std::vector<int32_t>& tokens,
                          int64_t limit, bool insert = false) {
    std::vector<Node*> path;
    if (limit < kPageTokens || (!insert && roots_.count(cache_namespace) == 0)) return path;
    Node* node = &roots_[cache_namespace];
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
  // The tokens of the prefix that ends with the node's block.
  static std::vector<int32_t> TokensOf(const Node& node) {
    std::vector<int32_t> tokens(static_cast<size_t>(node.tokens));
    for (const Node* at = &node; at->parent != nullptr; at = at->parent) {
      std::copy(at->block.begin(), at->block.end(), tokens.begin() + at->parent->tokens);
    }
    return tokens;
  }
  CacheNamespace NamespaceOf(const Node& node) const {
    const Node* root = &node;
    while (root->parent != nullptr) root = root->parent;
    return std::find_if(roots_.begin(), roots_.end(),
                        [root](const auto& entry) { return &entry.second == root; })
        ->first;
  }
  // Removes the node, and then its ancestors, as long as they have no children, no snapshot and no
  // computing sequence.
  void Prune(Node* node) {
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

  bool empty() const { return roots_.empty(); }

 private:
  std::map<CacheNamespace, Node> roots_;
  absl::node_hash_map<std::pair<Node*, Block>, Node> nodes_;  // by parent and block
};

}  // namespace fox
