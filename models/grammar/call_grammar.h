// The grammar of an answer that calls functions: a tag, arguments of the function's schema, a tag.
#pragma once

#include <string>
#include <vector>

#include "models/grammar/ebnf_rules.h"
#include "models/grammar/grammar.h"

namespace fox {

struct CallForm {
  std::string begin;      // in front of the arguments
  std::string arguments;  // their rule
  std::string end;
};

struct AnswerForm {
  std::string trigger;    // what each call's `begin` begins with, and text without calls has not
  std::string separator;  // between calls that stand alone
  std::string beside;     // the rule of an answer without calls; empty: text
  bool required = false;  // the answer consists of calls
  bool one_call = false;  // at most
};

// `rules` has the rules that the forms name.
GrammarSource CallGrammar(const std::vector<CallForm>& calls, const AnswerForm& form,
                          EbnfRules* rules);

}  // namespace fox
