// Matching by PCRE2, compiled just in time where the machine allows it. See pretokenizer.h.
#include "models/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "models/checkpoint/error_text.h"
#include "models/tokenizer/utf8.h"

namespace fox {
namespace {

using Behavior = PretokenizerStep::Behavior;

// Code points of Unicode 15 and 16, which PCRE2 10.42 does not know, and U+180E, which it takes for
// a space. The stand-in has the same category and the same length in UTF-8.
struct StandIn {
  uint32_t first, last, stand_in;
};
constexpr StandIn kStandIns[] = {
#include "models/tokenizer/unicode_stand_ins.inc"
};

// `text` with stand-ins for newer characters; no value if there are none.
std::optional<std::string> WithStandIns(std::string_view text) {
  std::optional<std::string> out;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0xE0) {  // PCRE2 knows all characters of one or two bytes
      ++at;
      continue;
    }
    const Utf8Unit unit = NextUtf8(text.data() + at, text.size() - at);
    const auto* row = std::lower_bound(
        std::begin(kStandIns), std::end(kStandIns), unit.code_point,
        [](const StandIn& entry, uint32_t code_point) { return entry.last < code_point; });
    if (row != std::end(kStandIns) && row->first <= unit.code_point) {
      if (!out.has_value()) out.emplace(text);
      std::string character;
      AppendUtf8(row->stand_in, &character);
      out->replace(at, unit.length, character);
    }
    at += unit.length;
  }
  return out;
}

// The first construct of a pattern that PCRE2 might read unlike the reference implementation; "":
// there is none.
std::string NotSupported(std::string_view pattern) {
  constexpr std::string_view kGroups[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
  constexpr std::string_view kProperties[] = {"L}", "Lu}", "Ll}", "Lt}", "Lm}", "Lo}",
                                              "M}", "N}",  "Nd}", "Nl}", "No}", "P}",
                                              "S}", "Z}",  "Zs}", "Zl}", "Zp}"};
  const auto starts_with_one = [](std::string_view text, const auto& list) {
    return std::any_of(std::begin(list), std::end(list), [text](std::string_view start) {
      return text.substr(0, start.size()) == start;
    });
  };
  bool in_class = false;
  for (size_t at = 0; at < pattern.size(); ++at) {
    const std::string_view rest = pattern.substr(at);
    const char c = rest[0], next = rest.size() > 1 ? rest[1] : '\0';
    if (c == '\\') {
      const bool property = next == 'p' || next == 'P';
      if (property &&
          (rest.size() < 4 || rest[2] != '{' || !starts_with_one(rest.substr(3), kProperties))) {
        return std::string(rest.substr(0, std::max<size_t>(rest.find('}') + 1, 2)));
      }
      const bool word =
          (next >= '0' && next <= '9') || ((next | 0x20) >= 'a' && (next | 0x20) <= 'z');
      if (word && std::string_view("pPsSdDrntf").find(next) == std::string_view::npos) {
        return std::string(rest.substr(0, 2));
      }
      at += property ? rest.find('}') : 1;
    } else if (in_class) {
      if (c == '[' || (c == '&' && next == '&')) return std::string(rest.substr(0, 2));
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (next == '^') ++at;
      if (rest.substr(next == '^' ? 2 : 1, 1) == "]") return "[]";
    } else if ((c == '(' && next == '*') ||
               (c == '(' && next == '?' && !starts_with_one(rest, kGroups)) ||
               (c == '{' && next == ',') || (c == '}' && (next == '+' || next == '?'))) {
      return std::string(rest.substr(0, 3));
    }
  }
  return "";
}

absl::StatusOr<std::shared_ptr<const pcre2_code>> Compile(const std::string& pattern) {
  constexpr size_t kMaxPattern = size_t{64} << 10;
  const auto refused = [&pattern](const std::string& why) {
    return absl::UnimplementedError(absl::StrCat("pattern ", Quoted(pattern), ": ", why));
  };
  if (pattern.size() > kMaxPattern || !IsValidUtf8(pattern)) return refused("not a short text");
  const std::string odd = NotSupported(pattern);
  if (!odd.empty()) {
    return refused(absl::StrCat(Quoted(odd),
                                " is not supported; groups (?: (?i: (?= (?! (?<= (?<!, ",
                                "\\s \\d \\r \\n \\t \\f, general categories as in \\p{L} are"));
  }
  int error = 0;
  size_t place = 0;
  // In the reference implementation ^ and $ match at every line.
  std::shared_ptr<pcre2_code> code(
      pcre2_compile(
          reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C,
          &error, &place, nullptr),
      pcre2_code_free);
  if (code == nullptr) {
    PCRE2_UCHAR message[120] = "";
    pcre2_get_error_message(error, message, sizeof(message));
    return refused(Printable(reinterpret_cast<const char*>(message)));
  }
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0) return refused("matches the empty text");
  // If this fails, because the machine forbids it or the pattern is too large, PCRE2 interprets.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return std::shared_ptr<const pcre2_code>(code);
}

}  // namespace

// One call of Split.
class Pretokenizer::Cutter {
 public:
  Cutter(const std::vector<Step>& steps, uint64_t* budget, const Take& take)
      : steps_(steps), take_(take), budget_(*budget) {
    pcre2_set_heap_limit(context_.get(), kHeapKib);
  }

  // Cuts `text` by the steps from `level` on. Patterns match in `subject`, which is the text with
  // stand-ins, of the same length.
  bool Cut(size_t level, std::string_view text, std::string_view subject) {
    FOX_CHECK(text.size() == subject.size());
    if (level == steps_.size()) {
      take_(text);
      return true;
    }
    const Step& step = steps_[level];
    if (step.given.prefix_space && text[0] != ' ') {
      const std::string spaced = absl::StrCat(" ", AbslView(text));
      const std::string spaced_subject = absl::StrCat(" ", AbslView(subject));
      return CutAt(step, level, spaced, spaced_subject);
    }
    return CutAt(step, level, text, subject);
  }

 private:
  // Steps of a match from one start. Most starts need fewer, so a search with this limit is linear.
  // A start that needs more pays from the budget of the text.
  static constexpr uint32_t kFirstLimit = 256;
  static constexpr uint32_t kHeapKib = 64 << 10;  // of the interpreter

  static absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

  bool CutAt(const Step& step, size_t level, std::string_view text, std::string_view subject) {
    if (step.code == nullptr) return Cut(level + 1, text, subject);
    const Behavior behavior = step.given.behavior;
    size_t begin = 0, end = 0;  // the piece so far
    bool is_match = false;      // the last part of the piece is a match
    const auto flush = [&] {
      const bool removed = is_match && behavior == Behavior::kRemoved;
      return begin == end || removed ||
             Cut(level + 1, text.substr(begin, end - begin), subject.substr(begin, end - begin));
    };
    const auto add = [&](size_t part_end, bool part_is_match) {
      part_is_match = part_is_match != step.given.invert;
      const bool joins =
          (behavior == Behavior::kMergedWithPrevious && part_is_match && !is_match) ||
          (behavior == Behavior::kMergedWithNext && !part_is_match && is_match) ||
          (behavior == Behavior::kContiguous && part_is_match == is_match);
      if (part_end == end) return true;
      if (!joins || begin == end) {
        if (!flush()) return false;
        begin = end;
      }
      end = part_end;
      is_match = part_is_match;
      return true;
    };
    while (end < text.size()) {
      const auto match = Find(*step.code, subject, end);
      if (!match.has_value()) return false;
      if (!add(match->first, false) || !add(match->second, true)) return false;
    }
    return flush();
  }

  // The first match from `at` on; an empty one at the end of the subject if there is none. No
  // value: it takes too many steps.
  std::optional<std::pair<size_t, size_t>> Find(const pcre2_code& code, std::string_view subject,
                                                size_t at) {
    int found = Match(code, subject, at, 0, kFirstLimit);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = PCRE2_ERROR_MATCHLIMIT;  // interpreted below
    // The limit is for one start, so from here on the starts are tried one by one.
    for (uint32_t limit = kFirstLimit; found == PCRE2_ERROR_MATCHLIMIT && at < subject.size();) {
      found = Match(code, subject, at, PCRE2_ANCHORED, limit);
      if (found == PCRE2_ERROR_NOMATCH) {
        at += NextUtf8(subject.data() + at, subject.size() - at).length;
        limit = kFirstLimit;
        found = PCRE2_ERROR_MATCHLIMIT;
      } else if (found == PCRE2_ERROR_MATCHLIMIT) {
        limit *= 2;
        if (budget_ < limit) return std::nullopt;
        budget_ -= limit;
      }
    }
    if (found > 0) {
      const size_t* place = pcre2_get_ovector_pointer(data_.get());
      FOX_CHECK(at <= place[0] && place[0] <= place[1] && place[1] <= subject.size());
      return std::pair(place[0], place[1]);
    }
    const bool none = found == PCRE2_ERROR_NOMATCH || at == subject.size();
    return none ? std::optional(std::pair(subject.size(), subject.size())) : std::nullopt;
  }

  int Match(const pcre2_code& code, std::string_view subject, size_t at, uint32_t options,
            uint32_t limit) {
    pcre2_set_match_limit(context_.get(), limit);
    return pcre2_match(&code, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), at,
                       PCRE2_NO_UTF_CHECK | options, data_.get(), context_.get());
  }

  const std::vector<Step>& steps_;
  const Take& take_;
  uint64_t& budget_;
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data_{
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free};
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context_{
      pcre2_match_context_create(nullptr), pcre2_match_context_free};
};

std::string LiteralPattern(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (absl::ascii_ispunct(static_cast<unsigned char>(c))) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

absl::StatusOr<Pretokenizer> Pretokenizer::Create(const std::vector<PretokenizerStep>& steps) {
  Pretokenizer pretokenizer;
  for (const PretokenizerStep& step : steps) {
    pretokenizer.steps_.push_back({step, nullptr});
    if (step.pattern.empty()) continue;
    auto code = Compile(WithStandIns(step.pattern).value_or(step.pattern));
    if (!code.ok()) return code.status();
    pretokenizer.steps_.back().code = *std::move(code);
  }
  return pretokenizer;
}

absl::Status Pretokenizer::Split(std::string_view text, uint64_t* budget, const Take& take) const {
  const std::optional<std::string> subject = WithStandIns(text);
  Cutter cutter(steps_, budget, take);
  if (text.empty() || cutter.Cut(0, text, subject.has_value() ? *subject : text)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("the tokenizer's pattern takes too many steps for this text");
}

}  // namespace fox
