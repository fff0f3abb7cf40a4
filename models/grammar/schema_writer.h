// SchemaWriter: one schema's way into rules, for json_schema.cc, which makes schemas plain and
// takes them apart, and schema_types.cc, which writes the values of a type.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoint/json_reader.h"
#include "models/grammar/ebnf_rules.h"

namespace fox {

// A schema is "plain" if it holds keywords that assert something and no others, of checked form,
// with `type` and `enum` as lists; and "whole" if what $ref and allOf say is merged into it. Paths
// are JSON pointers. Functions throw std::runtime_error: not a schema, or not supported; NoValue.
class SchemaWriter {
 public:
  SchemaWriter(const ExactJson& root, bool relax, EbnfRules* rules)
      : root_(root), relax_(relax), rules_(*rules), place_(rules->place()) {}

  // The rule of the schema's values.
  std::string Write(const ExactJson& schema, const std::string& path);
  const std::vector<std::string>& relaxed() const { return relaxed_; }

 private:
  // A rule that may be asked for while it is written.
  struct Memo {
    std::string name;
    int level = 0;
    bool is_used = false, is_open = true;
  };
  struct Property {
    std::string name, value;
    bool required;
  };
  struct Properties {
    std::vector<Property> named;
    std::string other_name, other_value;  // empty: there are no others
    std::set<std::string> taken;          // names that others may not have
  };

  [[noreturn]] void Fail(const std::string& path, const std::string& problem) const;
  // What it asserts is not enforced, because it may be relaxed; else it fails.
  void Drop(const std::string& path, const std::string& keyword);
  void Tell(const std::string& path, const std::string& keyword);  // that it is not enforced

  ExactJson Plain(const ExactJson& schema, const std::string& path);
  void ReadWord(const ExactJson& schema, const std::string& word, const std::string& path,
                ExactJson* out);
  const ExactJson& Target(const std::string& ref, const std::string& path) const;
  ExactJson Whole(const ExactJson& schema, const std::string& path);
  ExactJson Merge(ExactJson a, const ExactJson& b, const std::string& path,
                  const std::string& keyword);
  std::string WriteWhole(const ExactJson& whole, const std::string& path);
  std::string Body(const ExactJson& whole, const std::string& path);
  std::string Alternatives(const ExactJson& whole, const std::string& keyword,
                           const std::string& path);
  // Whether the two, which may then require more, have no value in common.
  bool Separate(ExactJson* a, ExactJson* b, const std::string& path);

  std::string Enum(const ExactJson& whole, const std::string& path);
  std::string Types(const ExactJson& whole, const std::string& path);
  std::string OfType(const std::string& type, const ExactJson& whole, const std::string& path);
  std::string String(const ExactJson& whole, const std::string& path);
  std::string Integer(const ExactJson& whole, const std::string& path);
  std::string Array(const ExactJson& whole, const std::string& path);
  std::string Object(const ExactJson& whole, const std::string& path);
  void ReadNames(const ExactJson& whole, const std::string& path, Properties* out);
  void ReadProperties(const ExactJson& whole, const std::string& path, Properties* out);
  void ReadOthers(const ExactJson& whole, const std::string& path, Properties* out);

  const ExactJson& root_;
  const bool relax_;
  EbnfRules& rules_;
  const std::string place_;           // of the root
  std::map<std::string, Memo> memo_;  // by the text of the whole schema
  std::vector<std::string> relaxed_;
  int depth_ = 0;
  int level_ = 0;  // of objects and lists
};

std::string PathTo(const std::string& path, const std::string& word);

}  // namespace fox
