// EbnfRules: the places of rules, which error messages name.
#include "models/grammar/ebnf_rules.h"

#include "gtest/gtest.h"

namespace fox {
namespace {

TEST(EbnfRulesTest, TheHeaviestPlaceHasMoreThanHalfOfTheWeight) {
  EbnfRules rules;
  std::vector<std::string> names;
  for (const char* place : {"a#", "b#/x", "b#/y/1", "b#/y/2"}) {
    rules.set_place(place);
    names.push_back(rules.Add(EbnfText(place)));
  }
  const struct {
    std::vector<int64_t> weights;
    const char* place;
  } kCases[] = {{{1, 1, 1, 1}, "b#"},   {{9, 2, 2, 2}, "a#"},   {{3, 1, 1, 1}, ""},
                {{1, 1, 2, 2}, "b#/y"}, {{0, 9, 4, 4}, "b#/x"}, {{0, 0, 1, 3}, "b#/y/2"}};
  for (const auto& c : kCases) {
    std::map<std::string, int64_t> weights = {{"root", 0}};
    for (size_t i = 0; i < names.size(); ++i) weights[names[i] + "#rest3_1"] = c.weights[i];
    EXPECT_EQ(HeaviestPlace(weights, "root ::= r0\n" + rules.text()), c.place)
        << testing::PrintToString(c.weights);
  }
}

}  // namespace
}  // namespace fox
