// JsonNames: keeps an answer's JSON objects free of duplicate names. It records the names of the
// open objects and removes tokens from the mask that would write one again. A grammar cannot
// express this, because objects without duplicate names are not a context-free language.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fox {

// The tokens of a vocabulary, indexed for JsonNames.
struct NameTokens {
  // `sorted`: (id, text) in the order of the texts. Must outlive this object.
  explicit NameTokens(const std::vector<std::pair<int32_t, std::string>>& sorted);

  const std::vector<std::pair<int32_t, std::string>>& sorted;
  std::vector<std::pair<int32_t, std::string>> whole;  // may hold a whole name with its quotes
};

// Follows one answer. REQUIRES: its JSON is well-formed, and each name has only one spelling
// (EbnfRules::Name sees to it).
class JsonNames {
 public:
  // JSON begins behind each text in `begins`, or at the start of the answer if one is empty, and
  // ends with the bracket that closes it.
  JsonNames(const NameTokens& tokens, std::vector<std::string> begins);

  void Read(const std::string& bytes);
  // Clears the bits of tokens that would write a name twice. `mask` has one bit for each token.
  void Clear(std::vector<uint32_t>* mask) const;

 private:
  struct Place {
    bool in_string = false, is_name = false, is_escape = false, expects_name = false;
    std::string name;  // as far as it is written
  };
  struct Frame {
    bool is_object;
    std::set<std::string> names;
  };
  // The open objects and lists, the innermost last. A stack may be a draft of another one: it then
  // reads the first `shared` of `base` and changes only its own frames.
  struct Stack {
    const std::vector<Frame>* base = nullptr;
    size_t shared = 0;
    // The first one is not open: it takes names that are added to the innermost shared frame.
    std::vector<Frame> frames = {{false, {}}};

    size_t size() const { return shared + frames.size() - 1; }
    bool in_object() const;
    void Pop();
    bool AddName(const std::string& name);  // false: the innermost object already has it
  };
  // kEnd: JSON has ended.
  enum class Event { kNone, kEnd, kRepeatedName };
  // Reads one byte.
  static Event Step(char c, Place* place, Stack* open);
  bool Repeats(const std::string& token) const;

  const NameTokens& tokens_;
  const std::vector<std::string> begins_;
  std::string outside_;  // the end of the text before JSON
  bool in_json_;
  Place place_;
  Stack open_;
};

}  // namespace fox
