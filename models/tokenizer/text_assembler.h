// TextAssembler: turns the tokens of one sequence into text to show, up to the first stop string.
// Text that may be the start of a stop string is held back. Invariant: the pieces joined are the
// whole text up to the stop string, with it if `include_stop`. Read sequence_events.h next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/tokenizer/stop_matcher.h"
#include "models/tokenizer/token_stream.h"

namespace fox {

// Not thread-safe. The tokenizer must outlive the assembler.
class TextAssembler {
 public:
  struct Shown {
    std::string text;
    int stop = -1;  // index of the stop string that ended the text
  };

  // The text continues a prompt, so its leading space is kept.
  TextAssembler(const Tokenizer& tokenizer, bool skip_special,
                const std::vector<std::string>& stops, bool include_stop);

  // Returns the text that became safe to show. `may_stop` false: a stop string that ends in this
  // token is ignored. After a stop all results are empty.
  Shown Push(int32_t id, bool may_stop = true);
  // Returns the text that is held back, and ends the text.
  Shown Finish();

 private:
  Shown Append(std::string text, bool may_stop);

  TokenStream stream_;
  StopMatcher matcher_;
  bool include_stop_;
  bool stopped_ = false;
  std::string held_;
};

}  // namespace fox
