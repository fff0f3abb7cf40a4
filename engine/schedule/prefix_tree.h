// PrefixTree: which prefixes are kept, by their tokens. A node is a block of 64 tokens behind its
// parent's; the roots are realms that share nothing. Nodes are found by all their tokens, never by
// a hash alone.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/paged_kv.h"

namespace fox {

struct Sequence;

class PrefixTree {
 public:
  using Block = std::array<int32_t, kPageTokens>;
  struct Node {
    Node* parent = nullptr;  // null: a root
    Block block = {};
    int64_t tokens = 0;  // up to its end
    absl::flat_hash_map<Block, std::unique_ptr<Node>> children;
    int32_t snapshot = -1;          // slot of the snapshot at its end; -1: none
    Sequence* computing = nullptr;  // the first sequence that computes this block
  };
  // What keeps prefixes apart: the client's salt, and log eps.
  using Realm = std::pair<std::string, double>;

  PrefixTree() = default;
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  ~PrefixTree();  // node by node: paths are as deep as sequences are long

  // The nodes of the longest known beginning of the first `limit` tokens, from the root's child on.
  std::vector<Node*> Find(const Realm& realm, const std::vector<int32_t>& tokens,
                          int64_t limit) const;
  // The same with nodes for all whole blocks.
  std::vector<Node*> Insert(const Realm& realm, const std::vector<int32_t>& tokens, int64_t limit);
  // Forgets the node and those before it as far as nothing hangs on them.
  void Prune(Node* node);

  bool empty() const { return realms_.empty(); }

 private:
  static Block BlockAt(const std::vector<int32_t>& tokens, int64_t position);

  std::map<Realm, Node> realms_;
};

}  // namespace fox
