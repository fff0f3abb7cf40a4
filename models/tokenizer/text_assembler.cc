// Tokens through TokenStream, their text through StopMatcher. See text_assembler.h.
#include "models/tokenizer/text_assembler.h"

#include <utility>

#include "kernels/core/check.h"

namespace fox {

TextAssembler::TextAssembler(const Tokenizer& tokenizer, bool skip_special,
                             const std::vector<std::string>& stops, bool include_stop)
    : stream_(tokenizer, skip_special, /*at_text_start=*/false),
      matcher_(stops),
      include_stop_(include_stop) {}

TextAssembler::Shown TextAssembler::Push(int32_t id, bool may_stop) {
  if (stopped_) return {};
  return Append(stream_.Push(id), may_stop);
}

TextAssembler::Shown TextAssembler::Finish() {
  if (stopped_) return {};
  Shown piece = Append(stream_.Finish(), true);
  if (piece.stop < 0) piece.text += std::exchange(held_, std::string());
  stopped_ = true;
  return piece;
}

TextAssembler::Shown TextAssembler::Append(std::string text, bool may_stop) {
  if (matcher_.empty()) return {std::move(text), -1};
  for (char c : text) {
    held_.push_back(c);
    const int stop = matcher_.Push(c);
    if (stop < 0 || !may_stop) continue;
    stopped_ = true;
    FOX_CHECK(matcher_.size(stop) <= held_.size());
    if (!include_stop_) held_.resize(held_.size() - matcher_.size(stop));
    return {std::exchange(held_, std::string()), stop};
  }
  FOX_CHECK(matcher_.held() <= held_.size());
  const size_t shown = held_.size() - matcher_.held();
  Shown piece{held_.substr(0, shown), -1};
  held_.erase(0, shown);
  return piece;
}

}  // namespace fox
