// ToolCallReader: see tool_call_reader.h.
#include "server/http/openai/tool_call_reader.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "server/process/random_id.h"

namespace fox {

ToolCallReader::ToolCallReader(const ToolFormat& format, bool calls_only)
    : format_(format),
      calls_only_(calls_only),
      openings_({format.separator + format.call, format.call}),
      matcher_(openings_) {
  FOX_CHECK(!format.call.empty());
}

void ToolCallReader::Read(absl::string_view piece, std::string* content,
                          std::vector<ToolCallPart>* parts) {
  for (const char byte : piece) {
    if (place_ == Place::kText) {
      ReadText(byte, content);
      continue;
    }
    if (place_ == Place::kArguments) {
      if (parts->empty()) parts->push_back({.index = calls_});
      parts->back().arguments += byte;
      ReadArgument(byte);
    } else {
      held_ += byte;
    }
    if (place_ == Place::kName && held_.ends_with(format_.arguments)) {
      held_.resize(held_.size() - format_.arguments.size());
      parts->push_back({calls_, absl::StrCat("call_", absl::Hex(RandomSeed(), absl::kZeroPad16)),
                        std::exchange(held_, {})});
      place_ = Place::kArguments;
    } else if (place_ == Place::kEnd && held_.size() == format_.call_end.size()) {
      held_.clear();
      ++calls_;
      matcher_ = StopMatcher(openings_);
      place_ = Place::kText;
    }
  }
}

void ToolCallReader::EndText(bool cut, std::string* content) {
  if (place_ != Place::kText) return;
  const std::string held = std::exchange(held_, {});
  if (calls_only_ || (cut && calls_ > 0)) return;
  const size_t tag = held.find(format_.trigger[0]);
  // A tag's first letter alone is more likely text, as in "a < b", and a separator an end of line.
  const size_t least = cut ? 2 : format_.trigger.size();
  if (tag == held.npos || held.size() - tag < least) *content += held;
}

void ToolCallReader::ReadText(char byte, std::string* content) {
  held_ += byte;
  const int opening = matcher_.Push(byte);
  size_t open = matcher_.held();
  if (opening >= 0) {
    open = openings_[static_cast<size_t>(opening)].size();
    place_ = Place::kName;
  }
  FOX_CHECK(open <= held_.size());
  content->append(held_, 0, held_.size() - open);
  held_.erase(0, opening >= 0 ? held_.size() : held_.size() - open);
}

// Up to the brace that ends the object.
void ToolCallReader::ReadArgument(char byte) {
  if (!quotes_.open() && byte == '{') ++depth_;
  if (!quotes_.open() && byte == '}' && --depth_ == 0) place_ = Place::kEnd;
  quotes_.Read(byte);
}

}  // namespace fox
