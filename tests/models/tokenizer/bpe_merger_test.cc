// Both ways of merging against a plain implementation that follows the definition.
#include "models/tokenizer/bpe_merger.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace fox {
namespace {

struct Table {
  BpeMerger merger;
  std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>> rules;  // rank, product
};

// Random rules over `letters` letters. Trained tables only merge products of lower ranks; with
// `shuffled` the ranks come in any order.
Table RandomTable(std::mt19937* rng, int letters, int size, bool shuffled) {
  std::vector<std::string> tokens;
  std::map<std::string, int32_t> id;
  for (int i = 0; i < letters; ++i) {
    tokens.emplace_back(1, static_cast<char>('a' + i));
    id[tokens.back()] = i;
  }
  std::vector<std::array<int32_t, 3>> rules;
  for (int i = 0; i < size; ++i) {
    const auto left = static_cast<int32_t>((*rng)() % tokens.size());
    const auto right = static_cast<int32_t>((*rng)() % tokens.size());
    const std::string product =
        tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
    const auto [it, inserted] = id.emplace(product, static_cast<int32_t>(tokens.size()));
    if (inserted) tokens.push_back(product);
    rules.push_back({left, right, it->second});
  }
  if (shuffled) std::shuffle(rules.begin(), rules.end(), *rng);
  Table table;
  int32_t rank = 0;
  for (const auto& [left, right, product] : rules) {
    table.merger.AddRule(left, right, product);
    table.rules[{left, right}] = {rank++, product};
  }
  return table;
}

std::vector<int32_t> PlainMerge(const Table& table, std::vector<int32_t> symbols) {
  while (true) {
    size_t best = symbols.size();
    std::pair<int32_t, int32_t> best_rule;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = table.rules.find({symbols[i], symbols[i + 1]});
      if (it == table.rules.end()) continue;
      if (best == symbols.size() || it->second.first < best_rule.first) {
        best = i;
        best_rule = it->second;
      }
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = best_rule.second;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(BpeMergerTest, EqualsThePlainDefinition) {
  std::mt19937 rng(7);
  for (int round = 0; round < 400; ++round) {
    const int letters = 1 + static_cast<int>(rng() % 4);
    const Table table =
        RandomTable(&rng, letters, 1 + static_cast<int>(rng() % 60), round % 2 != 0);
    BpeMerger::Workspace workspace;
    for (int text = 0; text < 20; ++text) {
      std::vector<int32_t> symbols(rng() % 200);  // short and long ones in one workspace
      for (int32_t& symbol : symbols) {
        symbol = static_cast<int32_t>(rng() % static_cast<uint32_t>(letters));
      }
      const std::vector<int32_t> expected = PlainMerge(table, symbols);
      table.merger.Merge(&symbols, &workspace);
      ASSERT_EQ(symbols, expected);
    }
  }
}

}  // namespace
}  // namespace fox
