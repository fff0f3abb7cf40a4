// The three forms of an answer: calls within text, calls alone, and calls or an answer of a schema.
// See call_grammar.h.
#include "models/grammar/call_grammar.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/check.h"

namespace fox {

GrammarSource CallGrammar(const std::vector<CallForm>& calls, const AnswerForm& form,
                          EbnfRules* rules) {
  const bool in_text = !form.required && form.beside.empty();
  GrammarSource source{GrammarSource::Kind::kCalls, "", {}};
  std::vector<std::string> ways;
  FOX_CHECK(!calls.empty());
  for (const CallForm& call : calls) {
    FOX_CHECK(call.begin.starts_with(form.trigger));
    const std::string begin = call.begin.substr(in_text ? form.trigger.size() : 0);
    ways.push_back(absl::StrCat(EbnfText(begin), " ", call.arguments, " ", EbnfText(call.end)));
    source.json_begins.push_back(call.begin);
  }
  const std::string one = rules->Add(absl::StrJoin(ways, " | "));
  std::string root;
  if (in_text) {
    root =
        rules->Add(absl::StrCat("TagDispatch((", EbnfText(form.trigger), ", ", one,
                                "), loop_after_dispatch=", form.one_call ? "false" : "true", ")"));
  } else {
    root = form.one_call ? one : absl::StrCat(one, " (", EbnfText(form.separator), " ", one, ")*");
  }
  if (!form.required && !form.beside.empty()) {
    absl::StrAppend(&root, " | ", form.beside);
    source.json_begins.emplace_back();
  }
  source.text = absl::StrCat("root ::= ", root, "\n", rules->text());
  return source;
}

}  // namespace fox
