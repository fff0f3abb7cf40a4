// EbnfRules: the text of a grammar in EBNF, rule by rule. Rules with equal bodies become one rule:
// the library computes masks for each rule, so common parts of schemas are compiled once.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace fox {

class EbnfRules {
 public:
  // Returns the name of the rule with this body, which is added if there is none.
  std::string Add(const std::string& body);
  // Returns a name for rules that refer to a rule before its body is known. Define gives it its
  // body, exactly once unless no rule refers to it.
  std::string Reserve();
  void Define(const std::string& name, const std::string& body);
  const std::string& text() const { return text_; }

  // The origin of rules that are added from now on: a path in a schema, or a tool. It is written
  // behind each rule as a comment, for error messages (see HeaviestPlace).
  void set_place(const std::string& place) { place_ = place; }
  const std::string& place() const { return place_; }

  // --- Rules of JSON values, on one line, with the spaces of Python's json.dumps ---
  std::string Any();
  std::string String();
  std::string Number();
  std::string Integer();
  // Names of properties in quotes, except the names in `taken`. Each name has only one spelling, so
  // that equal names are equal texts (see json_names.h). If `taken` is large, names that begin like
  // a taken name are excluded, too, because every character to tell them apart costs a mask.
  std::string Name(const std::set<std::string>& taken);

 private:
  std::map<std::string, std::string> names_;  // by body
  std::string text_, place_;
  std::string any_, string_, name_;  // names of rules that refer to themselves; empty: not added
  int count_ = 0;
};

// The smallest place in `text` (see set_place) that has more than half of the weight of all rules;
// empty: none. Names the part of a grammar that makes it too large. `weights`: by the name of a
// rule, which the library may have derived from a rule of the text, as r1_2 or r1#rest3.
std::string HeaviestPlace(const std::map<std::string, int64_t>& weights, const std::string& text);

// A text as a literal of EBNF, in quotes.
std::string EbnfText(const std::string& text);

}  // namespace fox
