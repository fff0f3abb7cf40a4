// Denial of service by text: half a mebibyte of the nastiest content costs little time, and twice
// the text about twice; the largest text that a server takes by default (4 MiB) needs little memory
// beside its own tokens. Limits leave room for shared and instrumented machines; a quadratic
// algorithm would need minutes.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
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

// Text in words of at most this many letters.
std::string RandomLetters(size_t bytes, unsigned letters, unsigned longest) {
  std::mt19937 rng(11);
  std::string text;
  text.reserve(bytes);
  for (size_t left = 0; text.size() < bytes; --left) {
    text.push_back(left == 0 ? ' ' : static_cast<char>('a' + rng() % letters));
    if (left == 0) left = 2 + rng() % longest;
  }
  return text;
}

struct Content {
  const char* name;
  std::function<std::string(size_t)> make;
  bool in_memory = false;
};

std::vector<Content> Contents() {
  const auto repeat = [](const char* unit) {
    return [unit](size_t bytes) { return Repeat(unit, bytes); };
  };
  return {{"a", repeat("a"), true},
          {"^", repeat("^")},
          {"space", repeat(" "), true},
          {"newline", repeat("\n")},
          {"emoji", repeat("\xF0\x9F\x98\x80")},
          {"zwj family", repeat("\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D")},
          {"cjk", repeat("\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E")},
          {"combining", repeat("\xCC\x81")},
          {"marks", repeat("\xCC\x81\xCC\x96")},
          {"double marks", repeat("\xE0\xBD\xB3")},
          {"letter, spaces", [](size_t bytes) { return "x" + std::string(bytes, ' '); }},
          {"words and spaces", repeat("a               bc       ")},
          {"spaces, a letter", [](size_t bytes) { return std::string(bytes, ' ') + "x"; }},
          {"nul", [](size_t bytes) { return std::string(bytes, '\0'); }},
          {"random words", [](size_t bytes) { return RandomLetters(bytes, 26, 12); }, true},
          {"random letters", [](size_t bytes) { return RandomLetters(bytes, 26, INT_MAX); }},
          {"two letters", [](size_t bytes) { return RandomLetters(bytes, 2, INT_MAX); }},
          {"prose", repeat("Once upon a time there was a fox, and it's said he'd 42 foes. ")},
          {"special", repeat("<|endoftext|>")},
          {"almost special", repeat("<|endoftext|")}};
}

// The largest resident memory of a child process that encodes `text`, in MiB. It includes the
// loaded tokenizers, which the child inherits.
double PeakOfChild(const Tokenizer& tokenizer, const std::string& text) {
  const pid_t child = fork();
  if (child == 0) _exit(tokenizer.Encode(text, true).ok() ? 0 : 1);
  EXPECT_GT(child, 0);
  int status = 0;
  rusage usage = {};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Encoding takes little memory beyond that of a child that encodes one letter.
void ExpectLittleMemory(const Tokenizer& tokenizer) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is not bounded";
#endif
  for (const Content& content : Contents()) {
    if (!content.in_memory) continue;
    const std::string text = content.make(4 * kMebibyte);
    const double mib = PeakOfChild(tokenizer, text) - PeakOfChild(tokenizer, "a");
    std::printf("%-16s %-16s %6.1f MiB\n", tokenizer.info().kind.c_str(), content.name, mib);
    EXPECT_LT(mib, 80) << content.name;
  }
}

// These run first: a child may reuse memory that its parent has freed, which would hide its need.
TEST(TokenizerMemoryTest, Gpt2) { ExpectLittleMemory(*LoadGpt2("{}")); }
TEST(TokenizerMemoryTest, LongCrawl64) { ExpectLittleMemory(*LoadLongCrawl64()); }
TEST(TokenizerMemoryTest, TokenizerJson) { ExpectLittleMemory(*LoadSmall()); }
TEST(TokenizerMemoryTest, Llama3) { ExpectLittleMemory(*LoadLlama3()); }
TEST(TokenizerMemoryTest, Fallback) { ExpectLittleMemory(*LoadFallback(0)); }
TEST(TokenizerMemoryTest, SentencePiece) { ExpectLittleMemory(*LoadDemo()); }

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
TEST(TokenizerTimeTest, Llama3) { ExpectLinear(*LoadLlama3()); }
TEST(TokenizerTimeTest, Fallback) { ExpectLinear(*LoadFallback(0)); }
TEST(TokenizerTimeTest, LongestFirst) { ExpectLinear(*LoadLongestFirst()); }
TEST(TokenizerTimeTest, SentencePiece) { ExpectLinear(*LoadDemo()); }

}  // namespace
}  // namespace fox
