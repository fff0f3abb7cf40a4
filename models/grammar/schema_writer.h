// SchemaWriter: writes the rules of one JSON Schema. json_schema.cc resolves keywords that combine
// schemas; schema_types.cc writes the values of each type. AddSchemaRules is the way in.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoint/json_reader.h"
#include "models/grammar/ebnf_rules.h"

namespace fox {

// The most characters, items or properties that a grammar counts.
inline constexpr double kMaxCount = 1 << 20;

// A schema is "plain" if it holds only keywords that assert something, their form is checked, and
// `type` and `enum` are lists. It is "whole" if also $ref and allOf are merged into it. A `path` is
// the JSON pointer of a schema, for messages. All functions throw std::runtime_error if the schema
// is malformed or not supported, NoValue if it has no value, and WorkSpent.
class SchemaWriter {
 public:
  SchemaWriter(const ExactJson& root, bool relax, EbnfRules* rules)
      : root_(root), relax_(relax), rules_(*rules), place_(rules->place()) {}

  // Returns the name of the rule that writes the schema's values.
  std::string Write(const ExactJson& schema, const std::string& path);
  const std::vector<std::string>& relaxed() const { return relaxed_; }

 private:
  // The rule of a whole schema. It may be needed again while it is written: schemas refer to
  // themselves.
  struct Memo {
    std::string name;
    int level = 0;         // level_ at which it began
    bool is_used = false;  // needed again while it is open
    bool is_open = true;   // its body is not written yet
  };
  struct Property {
    std::string name, value;
    bool required;
  };
  struct Properties {
    std::vector<Property> named;
    std::string other_name, other_value;  // rules of unnamed properties; empty: none are allowed
    std::set<std::string> taken;          // names that unnamed properties may not have
  };

  [[noreturn]] void Fail(const std::string& path, const std::string& problem) const;
  // Leaves a keyword out: lists it if the schema may be relaxed, fails otherwise.
  void Drop(const std::string& path, const std::string& keyword);
  // Lists a keyword as not enforced.
  void List(const std::string& path, const std::string& keyword);

  ExactJson Plain(const ExactJson& schema, const std::string& path);
  void ReadWord(const ExactJson& schema, const std::string& word, const std::string& path,
                ExactJson* out);
  // The schema that `ref` refers to; null: the root has none.
  const ExactJson* Target(std::string ref) const;
  ExactJson Whole(const ExactJson& schema, const std::string& path);
  ExactJson Merge(const ExactJson& a, const ExactJson& b, const std::string& path,
                  const std::string& keyword);
  std::string WriteWhole(const ExactJson& whole, const std::string& path);
  std::string Body(const ExactJson& whole, const std::string& path);
  std::string Alternatives(const ExactJson& whole, const std::string& keyword,
                           const std::string& path);
  // The properties that the schemas have to require and to forbid, so that no value of the one,
  // with this, is of the other one without it; nullopt: none are known.
  struct Separation {
    std::optional<std::string> required, forbidden_by_a, forbidden_by_b;
  };
  std::optional<Separation> Separate(const ExactJson& a, const ExactJson& b,
                                     const std::string& path);

  std::string Enum(const ExactJson& whole, const std::string& path);
  std::string Types(const ExactJson& whole, const std::string& path);
  std::string OfType(const std::string& type, const ExactJson& whole, const std::string& path);
  std::string String(const ExactJson& whole, const std::string& path);
  std::string Number(const ExactJson& whole, const std::string& path);
  std::string Integer(const ExactJson& whole, const std::string& path);
  std::string Array(const ExactJson& whole, const std::string& path);
  std::string Object(const ExactJson& whole, const std::string& path);
  // As Write, for a property's name: each has only one spelling (see RegexPlace::kName).
  std::string WriteName(const ExactJson& schema, const std::string& path);
  void ReadNames(const ExactJson& whole, const std::string& path, Properties* out);
  void ReadProperties(const ExactJson& whole, const std::string& path, Properties* out);
  void ReadOthers(const ExactJson& whole, const std::string& path, Properties* out);

  const ExactJson& root_;
  const bool relax_;
  EbnfRules& rules_;
  const std::string place_;  // of the root
  // By the text of the whole schema; the text stands in a list if the schema is a name's.
  std::map<std::string, Memo> memo_;
  std::vector<std::string> relaxed_;
  int depth_ = 0;  // calls of Whole that are nested
  bool in_name_ = false;
  int level_ = 0;  // objects and lists around the value that is written
};

// The supported keywords that restrict values of this type alone.
std::vector<std::string> WordsOf(const std::string& type);

// The JSON pointer of member `word` of the value at `path`.
std::string PathTo(const std::string& path, const std::string& word);

}  // namespace fox
