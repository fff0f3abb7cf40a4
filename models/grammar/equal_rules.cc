// Each rule is written as numbers, in which the rules that it needs, already merged, stand by their
// ids. Rules that are written alike are equal. See equal_rules.h.
#include "models/grammar/equal_rules.h"

#include <map>
#include <utility>
#include <vector>

#include "grammar_functor.h"
#include "kernels/core/check.h"
#include "models/grammar/character_walk.h"
#include "models/grammar/work_meter.h"

namespace fox {
namespace {

class Merger : public xgrammar::GrammarMutator {
 public:
  xgrammar::Grammar Apply(const xgrammar::Grammar& grammar) override {
    grammar_ = grammar;
    kept_.assign(static_cast<size_t>(grammar->NumRules()), kUnseen);
    for (int32_t rule = 0; rule < grammar->NumRules(); ++rule) Keep(rule);
    return xgrammar::GrammarMutator::Apply(grammar);
  }

  int32_t VisitRuleRef(const GrammarExpr& expr) override {
    return builder_->AddRuleRef(KeptFor(expr[0]));
  }
  int32_t VisitRepeat(const GrammarExpr& expr) override {
    return builder_->AddRepeat(KeptFor(expr[0]), expr[1], expr[2]);
  }
  int32_t VisitTagDispatch(const GrammarExpr& expr) override {
    auto dispatch = base_grammar_->GetTagDispatch(expr);
    for (auto& [tag, rule] : dispatch.tag_rule_pairs) rule = KeptFor(rule);
    return builder_->AddTagDispatch(dispatch);
  }

 private:
  static constexpr int32_t kUnseen = -1, kOpen = -2, kItself = -3;

  int32_t KeptFor(int32_t rule) const {
    const int32_t kept = kept_.at(static_cast<size_t>(rule));
    FOX_CHECK(kept >= 0);  // Keep has seen all rules
    return kept;
  }

  // Returns the rule that replaces `rule`: the first rule equal to it. Rules that refer to each
  // other in a circle are not merged.
  int32_t Keep(int32_t rule) {
    FOX_CHECK(rule >= 0 && rule < grammar_->NumRules());
    int32_t& kept = kept_[static_cast<size_t>(rule)];
    if (kept != kUnseen) return kept;
    kept = kOpen;
    const auto& old = grammar_->GetRule(rule);
    std::vector<int32_t> text;
    // The mask compiler reads a number and a mark from a rule's name (grammar_parser.patch), which
    // so belong to its body.
    text.push_back(static_cast<int32_t>(NumberInName(old.name)));
    text.push_back(old.name.find("#rest") != old.name.npos ? 1 : 0);
    bool is_alone = !Write(old.body_expr_id, rule, &text);
    text.push_back(old.lookahead_assertion_id);
    if (old.lookahead_assertion_id >= 0) {
      text.back() = 0;
      is_alone |= !Write(old.lookahead_assertion_id, rule, &text);
    }
    const bool is_root = rule == grammar_->GetRootRuleId();
    return kept_[static_cast<size_t>(rule)] =
               is_alone || is_root ? rule : first_.try_emplace(std::move(text), rule).first->second;
  }

  // Appends an expression to `text`. False if it needs a rule that is not written yet.
  bool Write(int32_t id, int32_t rule, std::vector<int32_t>* text) {
    const auto expr = grammar_->GetGrammarExpr(id);
    SpendWork(4 + expr.size());
    const auto type = static_cast<int32_t>(expr.type);
    text->insert(text->end(), {type, expr.size()});
    if (expr.type == GrammarExprType::kSequence || expr.type == GrammarExprType::kChoices) {
      bool all = true;
      for (const int32_t part : expr) all &= Write(part, rule, text);
      return all;
    }
    if (expr.type == GrammarExprType::kTagDispatch) return false;
    text->insert(text->end(), expr.begin(), expr.end());
    if (expr.type != GrammarExprType::kRuleRef && expr.type != GrammarExprType::kRepeat)
      return true;
    int32_t& needed = (*text)[text->size() - static_cast<size_t>(expr.size())];
    if (needed == rule) return needed = kItself, true;
    const int32_t kept = Keep(needed);
    (*text)[text->size() - static_cast<size_t>(expr.size())] = kept;
    return kept != kOpen;
  }

  xgrammar::Grammar grammar_{xgrammar::NullObj{}};
  std::vector<int32_t> kept_;
  std::map<std::vector<int32_t>, int32_t> first_;
};

}  // namespace

xgrammar::Grammar MergeEqualRules(const xgrammar::Grammar& grammar) {
  return xgrammar::DeadCodeEliminator::Apply(Merger().Apply(grammar));
}

}  // namespace fox
