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

  // What the rules that are added from now on are of: a comment of each, for errors (see PlaceOf).
  void set_place(const std::string& place) { place_ = place; }
  const std::string& place() const { return place_; }

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
  std::string text_, place_;
  std::string any_, string_, name_;  // rules that refer to themselves
  int count_ = 0;
};

// Of a rule of `text`, or of one that the library has made of it: r1_2 or r1#rest3. Empty: none.
std::string PlaceOf(const std::string& rule, const std::string& text);

// A text in quotes.
std::string EbnfText(const std::string& text);

}  // namespace fox
