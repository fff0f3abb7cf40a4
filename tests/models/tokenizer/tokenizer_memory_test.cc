// Denial of service by text: how much memory the largest text that a server takes by default (4
// MiB) needs beside its own tokens, each in a process of its own.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <string>
#include <utility>

#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

constexpr size_t kBytes = size_t{4} << 20;

std::string Repeat(const std::string& unit) {
  std::string text;
  text.reserve(kBytes);
  while (text.size() + unit.size() <= kBytes) text += unit;
  return text;
}

std::string RandomWords() {
  std::mt19937 rng(12);
  std::string text;
  text.reserve(kBytes);
  while (text.size() + 16 < kBytes) {
    for (auto letters = 1 + rng() % 12; letters > 0; --letters) {
      text.push_back(static_cast<char>('a' + rng() % 26));
    }
    text.push_back(' ');
  }
  return text;
}

// The most resident memory of a child that encodes `text`, in MiB; it inherits what is loaded.
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

// Beside what a child has that encodes one letter.
void ExpectLittleMemory(const Tokenizer& tokenizer) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is not bounded";
#endif
  const std::pair<const char*, std::string> contents[] = {
      {"words", RandomWords()}, {"one letter", Repeat("a")}, {"spaces", Repeat(" ")}};
  for (const auto& [name, text] : contents) {
    const double mib = PeakOfChild(tokenizer, text) - PeakOfChild(tokenizer, "a");
    std::printf("%-16s %-16s %6.1f MiB\n", tokenizer.info().kind.c_str(), name, mib);
    EXPECT_LT(mib, 80) << name;
  }
}

TEST(TokenizerMemoryTest, Gpt2) { ExpectLittleMemory(*LoadGpt2("{}")); }
TEST(TokenizerMemoryTest, LongCrawl64) { ExpectLittleMemory(*LoadLongCrawl64()); }
TEST(TokenizerMemoryTest, TokenizerJson) { ExpectLittleMemory(*LoadSmall()); }
TEST(TokenizerMemoryTest, SentencePiece) { ExpectLittleMemory(*LoadDemo()); }

}  // namespace
}  // namespace fox
