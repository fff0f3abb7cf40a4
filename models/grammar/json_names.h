// JsonNames: the names of an answer's open objects, so that none is written twice. A grammar cannot
// say this: it is true of no context-free language.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fox {

// A vocabulary as JsonNames looks at it.
struct NameTokens {
  explicit NameTokens(const std::vector<std::pair<int32_t, std::string>>& sorted);

  const std::vector<std::pair<int32_t, std::string>>& sorted;  // ids by text, which outlive it
  std::vector<std::pair<int32_t, std::string>> whole;          // may hold a name with its quotes
};

// Follows one answer. The JSON in it is well-formed, and names have one spelling each.
class JsonNames {
 public:
  // JSON begins behind each of `begins`, and ends with its last bracket; "": at the start.
  JsonNames(const NameTokens& tokens, std::vector<std::string> begins);

  void Read(const std::string& bytes);
  // Clears the bits of tokens that would write a name twice, of one bit a token.
  void Clear(std::vector<uint32_t>* mask) const;

 private:
  struct Place {
    bool in_string = false, is_name = false, is_escape = false, expects_name = false;
    std::string name;  // as far as it is written
  };
  enum class Event { kNone, kObject, kArray, kEnd, kName };
  struct Frame {
    bool is_object;
    std::set<std::string> names;
  };
  static Event Step(char c, bool in_object, Place* place);
  bool Repeats(const std::string& token) const;

  const NameTokens& tokens_;
  const std::vector<std::string> begins_;
  std::string outside_;  // the end of the text before JSON
  bool in_json_;
  Place place_;
  std::vector<Frame> open_;
};

}  // namespace fox
