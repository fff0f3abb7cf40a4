// NeedlePrompts: needle in a haystack in the easy mode of the FoX paper, where the sentence that
// is hidden in a long text holds question and answer, and the text ends with the same question.
// A small model that follows no instructions can answer by copying what came after the question
// the first time, if it still sees that place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

struct NeedlePrompt {
  std::vector<int32_t> prompt;   // bos where the model has one; ends with the question
  std::vector<int32_t> value;    // the answer's tokens
  std::vector<int32_t> choices;  // the first token of every answer there is, the right one included
  std::string text;              // of `prompt`
};

class NeedlePrompts {
 public:
  // Haystacks are runs of the paragraphs of `text` (lines that are not empty), from its start again
  // where it ends, without those longer than an eighth of it. The tokenizer must outlive the
  // prompts. InvalidArgument: there is no paragraph, it is not UTF-8, or the answers do not differ
  // in their first token.
  static absl::StatusOr<NeedlePrompts> Make(const Tokenizer& tokenizer, std::optional<int32_t> bos,
                                            const std::string& text);

  // At most `tokens` long with the answer, and less by the last paragraph that did not fit. depth:
  // 0 puts the needle before the haystack, 1 after it; nullopt leaves it out, to show what the
  // question alone does. The trial picks the answer and where the haystack starts. InvalidArgument:
  // `tokens` do not even hold needle and question.
  absl::StatusOr<NeedlePrompt> Prompt(int64_t tokens, std::optional<double> depth,
                                      int64_t trial) const;

  static std::string Question();
  static std::string Needle(int64_t trial);

 private:
  struct Paragraph {
    std::string text;
    int64_t tokens = 0;
  };
  NeedlePrompts(const Tokenizer& tokenizer, std::optional<int32_t> bos)
      : tokenizer_(&tokenizer), bos_(bos) {}
  absl::StatusOr<int64_t> Count(const std::string& text) const;
  std::vector<const Paragraph*> Haystack(int64_t tokens, int64_t trial) const;
  // Question and needle beside a haystack of at most `room` tokens.
  std::string Text(int64_t room, std::optional<double> depth, int64_t trial) const;

  const Tokenizer* tokenizer_;
  std::optional<int32_t> bos_;
  std::vector<Paragraph> paragraphs_;
  std::vector<std::vector<int32_t>> values_;  // tokens after the question
};

}  // namespace fox
