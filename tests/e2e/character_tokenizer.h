// CharacterTokenizer: ids below 256 are bytes, 256 is bos, 257 eos, and each further one is a long
// word of 512 letters, so that few tokens make much text.
#pragma once

#include <string>
#include <vector>

#include "models/tokenizer/chat_format.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

class CharacterTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256, kEos = 257, kVocabSize = 260;

  CharacterTokenizer();
  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text,
                                              bool add_special_tokens) const override;
  std::string TokenBytes(int32_t id, bool skip_special) const override;
  bool IsAdded(int32_t id) const override { return id >= kBos; }
  const Info& info() const override { return info_; }
  // "<s>S:system.\n", "U:user\n" and "A:assistant</s>\n"; an answer follows "A:".
  ChatFormat Chat() const;

 private:
  Info info_;
};

}  // namespace fox
