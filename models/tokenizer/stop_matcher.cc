// StopMatcher: see stop_matcher.h. A trie with failure links, laid breadth first.
#include "models/tokenizer/stop_matcher.h"

#include "kernels/core/check.h"

namespace fox {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : nodes_(1) {
  for (size_t i = 0; i < stops.size(); ++i) Insert(stops[i], static_cast<int32_t>(i));
  Link();
}

int32_t StopMatcher::Child(int32_t node, unsigned char byte) const {
  if (node == 0) return root_[byte] == 0 ? -1 : root_[byte];
  // At most as many children as there are stop strings.
  for (int32_t c = nodes_[static_cast<size_t>(node)].first_child; c >= 0;
       c = nodes_[static_cast<size_t>(c)].next_sibling) {
    if (nodes_[static_cast<size_t>(c)].byte == byte) return c;
  }
  return -1;
}

void StopMatcher::Insert(const std::string& stop, int32_t index) {
  FOX_CHECK(!stop.empty());
  int32_t node = 0;
  for (char c : stop) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      Node added;
      added.byte = byte;
      added.depth = nodes_[static_cast<size_t>(node)].depth + 1;
      added.next_sibling = nodes_[static_cast<size_t>(node)].first_child;
      nodes_.push_back(added);
      nodes_[static_cast<size_t>(node)].first_child = child;
      if (node == 0) root_[byte] = child;
    }
    node = child;
  }
  Node& end = nodes_[static_cast<size_t>(node)];
  if (end.match < 0) end.match = index;  // a repeated string counts as its first
}

void StopMatcher::Link() {
  std::vector<int32_t> order;  // breadth first: a node's failure link is shallower than itself
  for (int32_t c = nodes_[0].first_child; c >= 0; c = nodes_[static_cast<size_t>(c)].next_sibling) {
    order.push_back(c);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t node = order[i];
    for (int32_t c = nodes_[static_cast<size_t>(node)].first_child; c >= 0;
         c = nodes_[static_cast<size_t>(c)].next_sibling) {
      Node& child = nodes_[static_cast<size_t>(c)];
      int32_t fail = nodes_[static_cast<size_t>(node)].fail;
      while (fail != 0 && Child(fail, child.byte) < 0) {
        fail = nodes_[static_cast<size_t>(fail)].fail;
      }
      const int32_t target = Child(fail, child.byte);
      child.fail = target < 0 ? 0 : target;
      if (child.match < 0) child.match = nodes_[static_cast<size_t>(child.fail)].match;
      order.push_back(c);
    }
  }
}

int StopMatcher::Push(char byte) {
  const auto b = static_cast<unsigned char>(byte);
  int32_t child = Child(state_, b);
  while (child < 0 && state_ != 0) {
    state_ = nodes_[static_cast<size_t>(state_)].fail;
    child = Child(state_, b);
  }
  state_ = child < 0 ? 0 : child;
  return nodes_[static_cast<size_t>(state_)].match;
}

}  // namespace fox
