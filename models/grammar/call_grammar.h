// CallGrammar: the grammar of an answer that calls functions. A call is a tag, the arguments as
// JSON of the function's schema, and a tag.
#pragma once

#include <string>
#include <vector>

#include "models/grammar/ebnf_rules.h"
#include "models/grammar/grammar.h"

namespace fox {

struct CallForm {
  std::string begin;      // the tag before the arguments
  std::string arguments;  // the name of their rule
  std::string end;        // the tag after them
};

struct AnswerForm {
  std::string trigger;    // the common beginning of all `begin` tags; other text must not have it
  std::string separator;  // between calls of an answer that has no other text
  std::string beside;     // the rule of an answer without calls; empty: any text around the calls
  bool required = false;  // the answer consists of calls only
  bool one_call = false;  // at most one call
};

// `rules` holds the rules named in `calls` and `form`.
GrammarSource CallGrammar(const std::vector<CallForm>& calls, const AnswerForm& form,
                          EbnfRules* rules);

}  // namespace fox
