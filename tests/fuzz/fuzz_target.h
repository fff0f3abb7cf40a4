// FUZZ_TEST defines a fuzz target; FuzzInput reads choices from its bytes; CheckRefusal is the form
// of any refusal. All targets are one program: libFuzzer calls a target in the preset fuzz, else
// fuzzers.cc does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/check.h"

namespace fox {

// Reads choices from the front of an input, then text. After the end everything is 0 or empty, so
// any bytes are an input. Make one call a statement: the compiler chooses the order of two calls in
// one expression, and a corpus must mean the same with all compilers.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size)
      : rest_(size == 0 ? "" : reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  bool Bool() { return (Byte() & 1) != 0; }
  // A number in [0, n), from one byte. REQUIRES: 0 < n <= 256.
  size_t Below(size_t n) { return Byte() % n; }
  // A text of at most `most` bytes; its length is the first byte. REQUIRES: most < 256.
  std::string Text(size_t most) {
    const size_t wanted = Below(most + 1);
    const size_t size = std::min(wanted, rest_.size());
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }
  std::string Rest() {
    std::string text(rest_);
    rest_ = {};
    return text;
  }
  // The rest as `count` texts, which are separated by a line of two percent signs.
  std::vector<std::string> Sections(size_t count) {
    constexpr std::string_view kBetween = "\n%%\n";
    std::vector<std::string> sections;
    while (sections.size() + 1 < count) {
      const size_t end = rest_.find(kBetween);
      sections.emplace_back(rest_.substr(0, end));
      rest_ = end == std::string_view::npos ? "" : rest_.substr(end + kBetween.size());
    }
    sections.push_back(Rest());
    return sections;
  }

 private:
  std::string_view rest_;
};

// A target in the program's list.
struct FuzzTarget {
  FuzzTarget(const char* its_name, void (*its_function)(FuzzInput))
      : name(its_name), run(its_function), next(first) {
    first = this;
  }
  const char* name;
  void (*run)(FuzzInput);
  const FuzzTarget* next;
  static inline const FuzzTarget* first = nullptr;
};

// FUZZ_TEST(name) { ... }: a target, which aborts by FOX_CHECK if the code under test is wrong.
#define FUZZ_TEST(name)                                     \
  static void Fuzz_##name(FuzzInput in);                    \
  static const FuzzTarget kFuzz_##name(#name, Fuzz_##name); \
  static void Fuzz_##name(FuzzInput in)

// Checks the refusal of an input from outside: one printable line of at most 1 KiB.
inline void CheckRefusal(const absl::Status& status) {
  FOX_CHECK(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
            absl::IsUnimplemented(status) || absl::IsOutOfRange(status) ||
            absl::IsFailedPrecondition(status));
  FOX_CHECK(!status.message().empty() && status.message().size() <= 1024);
  for (const char c : status.message()) FOX_CHECK(c >= ' ' && c <= '~');
}

}  // namespace fox
