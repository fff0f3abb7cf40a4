// EbnfRules: the text of a grammar, rule by rule. Rules of the same body are one rule, because the
// library computes masks for each: what two schemas have in common is compiled once.
#pragma once

#include <map>
#include <set>
#include <string>

namespace fox {

class EbnfRules {
 public:
  // The name of a rule with this body.
  std::string Add(const std::string& body);
  // A name to refer to before its body is known; Define follows once, or no rule refers to it.
  std::string Reserve();
  void Define(const std::string& name, const std::string& body);
  const std::string& text() const { return text_; }

  // --- Rules of JSON, on one line, with the spaces of Python's json.dumps ---
  std::string Any();
  std::string String();
  std::string Number();
  std::string Integer();
  // Names of properties in quotes, none of `taken`. Each has one spelling, so that equal names are
  // equal texts (see json_names.h). Where `taken` is long, names that begin like one of it are left
  // out, too, because each character of it takes a mask.
  std::string Name(const std::set<std::string>& taken);

 private:
  std::map<std::string, std::string> names_;  // by body
  std::string text_;
  std::string any_, string_, name_;  // rules that refer to themselves
  int count_ = 0;
};

// A text in quotes.
std::string EbnfText(const std::string& text);

}  // namespace fox
