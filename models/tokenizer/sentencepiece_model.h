// SentencePieceModel: the sentencepiece library behind types of the standard library. Its own
// header redefines absl::string_view, so no file may include both it and Abseil; this wrapper is
// the only place that includes it. It trusts the model: sentencepiece_check.h looks at it first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fox {

// Immutable; Encode may be called from any thread.
class SentencePieceModel {
 public:
  // nullptr with `error` set when the library refuses the model.
  static std::unique_ptr<SentencePieceModel> Parse(const std::string& serialized,
                                                   std::string* error);
  ~SentencePieceModel();

  // The bytes of the model, as Parse takes them.
  std::string Serialized() const;

  // False with `error` set when the library fails.
  bool Encode(const std::string& text, std::vector<int32_t>* ids, std::string* error) const;

 private:
  struct Library;
  explicit SentencePieceModel(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace fox
