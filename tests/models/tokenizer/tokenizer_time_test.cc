// Denial of service by text: what half a mebibyte of the nastiest content costs, and that twice the
// text costs about twice the time. Limits leave room for shared and instrumented machines; a
// quadratic algorithm would need minutes.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>

#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

std::string Repeat(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() + unit.size() <= bytes) text += unit;
  return text;
}

std::string RandomLetters(size_t bytes, int letters) {
  std::mt19937 rng(11);
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text.push_back(
        static_cast<char>('a' + static_cast<int>(rng() % static_cast<unsigned>(letters))));
  }
  return text;
}

struct Content {
  const char* name;
  std::function<std::string(size_t)> make;
};

std::vector<Content> Contents() {
  const auto repeat = [](const char* unit) {
    return [unit](size_t bytes) { return Repeat(unit, bytes); };
  };
  return {{"a", repeat("a")},
          {"^", repeat("^")},
          {"space", repeat(" ")},
          {"newline", repeat("\n")},
          {"emoji", repeat("\xF0\x9F\x98\x80")},
          {"zwj family", repeat("\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D")},
          {"cjk", repeat("\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E")},
          {"combining", repeat("\xCC\x81")},
          {"nul", [](size_t bytes) { return std::string(bytes, '\0'); }},
          {"random letters", [](size_t bytes) { return RandomLetters(bytes, 26); }},
          {"two letters", [](size_t bytes) { return RandomLetters(bytes, 2); }},
          {"prose", repeat("Once upon a time there was a fox, and it's said he'd 42 foes. ")},
          {"special", repeat("<|endoftext|>")},
          {"almost special", repeat("<|endoftext|")}};
}

// Time this thread computed: waiting for a processor that others use does not count.
double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Seconds(const Tokenizer& tokenizer, const std::string& text) {
  double best = 1e9;
  for (int round = 0; round < 2; ++round) {  // the better of two: others use the machine, too
    const double begin = ThreadSeconds();
    const auto ids = tokenizer.Encode(text, true);
    EXPECT_TRUE(ids.ok());
    best = std::min(best, ThreadSeconds() - begin);
  }
  return best;
}

void ExpectLinear(const Tokenizer& tokenizer) {
  for (const Content& content : Contents()) {
    const double half = Seconds(tokenizer, content.make(kMebibyte / 4));
    const double whole = Seconds(tokenizer, content.make(kMebibyte / 2));
    std::printf("%-16s %-16s %7.1f ms per MiB, x%.2f for twice the text\n",
                tokenizer.info().kind.c_str(), content.name, whole * 2e3, whole / half);
    EXPECT_LT(whole, 2.5) << content.name;
    // n log n gives 2.1; caches and neighbours add to it, most of all to short times.
    EXPECT_LT(whole, 3.5 * half + 0.1) << content.name;
  }
}

TEST(TokenizerTimeTest, Gpt2) { ExpectLinear(*LoadGpt2("{}")); }
TEST(TokenizerTimeTest, LongCrawl64) { ExpectLinear(*LoadLongCrawl64()); }
TEST(TokenizerTimeTest, TokenizerJson) { ExpectLinear(*LoadSmall()); }
TEST(TokenizerTimeTest, SentencePiece) { ExpectLinear(*LoadDemo()); }

}  // namespace
}  // namespace fox
