// BpeMerger against the plain definition, and EncodeInWindows against the whole text: any rules
// over a few letters, trained or not, texts with and without a period.
#include <algorithm>
#include <climits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/bpe_merger.h"
#include "models/tokenizer/bpe_windows.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

constexpr size_t kMaxTokenBytes = 24;

constexpr size_t kMaxTokens = 64;

struct Rules {
  BpeMerger merger;
  std::vector<int> rank = std::vector<int>(kMaxTokens * kMaxTokens, INT_MAX);  // [left, right]
  std::vector<int32_t> product;                                                // by rank
  std::vector<std::string> texts;                                              // by id

  int& RankOf(int32_t left, int32_t right) {
    return rank[static_cast<size_t>(left) * kMaxTokens + static_cast<size_t>(right)];
  }
};

// As in a vocabulary, no two tokens have the same text.
Rules ReadRules(FuzzInput& in, size_t letters) {
  Rules out;
  std::map<std::string, int32_t> id_of;
  for (size_t i = 0; i < letters; ++i) {
    out.texts.emplace_back(1, static_cast<char>('a' + i));
    id_of[out.texts.back()] = static_cast<int32_t>(i);
  }
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (size_t count = in.Below(33); count > 0; --count) {
    const auto left = static_cast<int32_t>(in.Below(out.texts.size()));
    const auto right = static_cast<int32_t>(in.Below(out.texts.size()));
    const std::string text =
        out.texts[static_cast<size_t>(left)] + out.texts[static_cast<size_t>(right)];
    if (text.size() > kMaxTokenBytes) continue;
    if (id_of.emplace(text, static_cast<int32_t>(out.texts.size())).second) {
      out.texts.push_back(text);
    }
    pairs.emplace_back(left, right);
  }
  const bool reversed = in.Bool();  // late merges then enable early ones
  if (reversed) std::reverse(pairs.begin(), pairs.end());
  for (size_t rank = 0; rank < pairs.size(); ++rank) {
    const auto [left, right] = pairs[rank];
    const int32_t product =
        id_of.at(out.texts[static_cast<size_t>(left)] + out.texts[static_cast<size_t>(right)]);
    out.merger.AddRule(left, right, product);
    out.RankOf(left, right) = static_cast<int>(rank);
    out.product.push_back(product);
  }
  return out;
}

std::vector<int32_t> PlainMerge(Rules& rules, std::vector<int32_t> ids) {
  while (true) {
    int best = INT_MAX;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const int rank = rules.RankOf(ids[i], ids[i + 1]);
      if (rank >= best) continue;
      best = rank;
      at = i;
    }
    if (best == INT_MAX) return ids;
    ids[at] = rules.product[static_cast<size_t>(best)];
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

std::vector<int32_t> Letters(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char letter : text) ids.push_back(letter - 'a');
  return ids;
}

}  // namespace

FUZZ_TEST(bpe) {
  const size_t letters = 1 + in.Below(4);
  Rules rules = ReadRules(in, letters);
  const size_t window_bytes = 1 + in.Below(96);
  const size_t repeats = 1 + in.Below(40);
  std::string text = in.Rest().substr(0, 128);
  for (char& c : text) c = static_cast<char>('a' + static_cast<uint8_t>(c) % letters);
  const std::string period = text;
  for (size_t i = 1; i < repeats && text.size() < 256; ++i) text += period;

  std::vector<int32_t> whole = Letters(text);
  const std::vector<int32_t> expected = PlainMerge(rules, whole);
  BpeMerger::Workspace workspace;
  rules.merger.Merge(&whole, &workspace);
  FOX_CHECK(whole == expected);
  std::vector<int32_t> in_windows;
  const auto encode = [&](std::string_view window, std::vector<WindowToken>* tokens) {
    std::vector<int32_t> ids = Letters(window);
    rules.merger.Merge(&ids, &workspace);
    size_t end = 0;
    for (const int32_t id : ids) {
      end += rules.texts[static_cast<size_t>(id)].size();
      tokens->push_back({id, end});
    }
    return true;
  };
  FOX_CHECK(EncodeInWindows(text, window_bytes, /*lookahead=*/0, encode, &in_windows));
  FOX_CHECK(in_windows == expected);
}

}  // namespace fox
