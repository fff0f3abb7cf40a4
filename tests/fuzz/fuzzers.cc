// The program of all fuzz targets. With libFuzzer, the variable FUZZ_TARGET names the target to
// run. Without it a target runs every file of its corpus, valid files also cut short at every byte,
// and then mutations of the files, always the same ones. An input that fails or takes too long is
// written to a file, whose path is printed.
//
//   fuzzers TARGET CORPUS [MUTATIONS]    or    fuzzers TARGET FILE
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace {

const fox::FuzzTarget& Target(const char* name) {
  const fox::FuzzTarget* target = fox::FuzzTarget::first;
  while (target != nullptr && name != nullptr && std::string_view(target->name) != name) {
    target = target->next;
  }
  FOX_CHECK(name != nullptr && target != nullptr && "no such target");
  return *target;
}

}  // namespace

#ifdef FOX_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fox::FuzzTarget& target = Target(std::getenv("FUZZ_TARGET"));
  target.run(fox::FuzzInput(data, size));
  return 0;
}

#else

namespace {

constexpr double kMaxSeconds = 2;               // of processor time, for one input
constexpr rlim_t kMaxMemory = rlim_t{4} << 30;  // of the address space
constexpr size_t kMaxCut = 4608;                // bytes of a file that is cut at every byte
constexpr size_t kMaxBytes = 16 << 10;          // of a mutation

std::string g_input, g_artifact;  // the current input, and the file to write if it fails

void WriteInput() {
  const int file = open(g_artifact.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || write(file, g_input.data(), g_input.size()) < 0) return;
  const std::string_view said = "the input that failed is in ";
  (void)!write(STDERR_FILENO, said.data(), said.size());
  (void)!write(STDERR_FILENO, g_artifact.data(), g_artifact.size());
  (void)!write(STDERR_FILENO, "\n", 1);
}

void OnFatalSignal(int signal_number) {
  WriteInput();
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void Run(const fox::FuzzTarget& target, std::string input) {
  g_input = std::move(input);
  const std::clock_t before = std::clock();
  target.run({reinterpret_cast<const uint8_t*>(g_input.data()), g_input.size()});
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  if (seconds <= kMaxSeconds) return;
  std::fprintf(stderr, "an input of %zu bytes took %.1f s\n", g_input.size(), seconds);
  WriteInput();
  std::exit(1);
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  FOX_CHECK(file.is_open());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> corpus) : corpus_(std::move(corpus)) {}

  std::string Next() {
    std::string text = Pick();
    for (size_t edits = size_t{1} << Below(4); edits > 0; --edits) Edit(&text);
    if (text.size() > kMaxBytes) text.resize(kMaxBytes);
    return text;
  }

 private:
  size_t Below(size_t n) { return random_() % n; }
  const std::string& Pick() { return corpus_[Below(corpus_.size())]; }

  static void Flip(char* byte, int bits) { *byte = static_cast<char>(*byte ^ bits); }

  // A part of `text`, most often a short one.
  std::string Part(const std::string& text) {
    if (text.empty()) return "";
    return text.substr(Below(text.size()), 1 + Below(size_t{1} << Below(8)));
  }

  void Edit(std::string* text) {
    const size_t at = Below(text->size() + 1), kind = Below(7);
    if (kind == 0) text->insert(at, 1, static_cast<char>(random_()));
    if (kind == 1) text->erase(at, 1 + Below(size_t{1} << Below(6)));
    if (kind == 2 && at < text->size()) Flip(&(*text)[at], 1 << Below(8));
    if (kind == 3) text->insert(at, Part(*text));
    if (kind == 4) text->insert(at, Part(Pick()));
    if (kind == 5) *text = text->substr(0, at) + Part(Pick());
    if (kind == 6) ChangeNumber(text, at);
  }

  // Replaces the next digits by another number.
  void ChangeNumber(std::string* text, size_t at) {
    constexpr const char* kNumbers[] = {"0",          "-1",    "1e9",  "4294967295",
                                        "2147483648", "1e999", "0.5",  "18446744073709551615",
                                        "65",         "65536", "null", "9223372036854775808"};
    const size_t begin = text->find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const size_t end = std::min(text->find_first_not_of("0123456789", begin), text->size());
    text->replace(begin, end - begin, kNumbers[Below(std::size(kNumbers))]);
  }

  std::mt19937 random_{7};
  const std::vector<std::string> corpus_;
};

}  // namespace

int main(int argc, char** argv) {
  FOX_CHECK(argc >= 3);
  const fox::FuzzTarget& target = Target(argv[1]);
  g_artifact = std::string("failed-") + target.name;
  for (const int fatal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(fatal, OnFatalSignal);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit limit{kMaxMemory, kMaxMemory};
  setrlimit(RLIMIT_AS, &limit);
#endif
  if (!std::filesystem::is_directory(argv[2])) {
    Run(target, ReadFile(argv[2]));
    return 0;
  }
  const std::filesystem::directory_iterator folder(argv[2]);
  std::vector<std::filesystem::path> paths(begin(folder), end(folder));
  FOX_CHECK(!paths.empty());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  size_t cuts = 0;
  for (const std::filesystem::path& path : paths) {
    const std::string& file = corpus.emplace_back(ReadFile(path));
    Run(target, file);
    if (file.size() > kMaxCut || !path.filename().string().starts_with("valid")) continue;
    for (size_t size = 0; size < file.size(); ++size) Run(target, file.substr(0, size));
    cuts += file.size();
  }
  const size_t mutations = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  Mutator mutator(corpus);
  for (size_t i = 0; i < mutations; ++i) Run(target, mutator.Next());
  std::printf("%zu files, %zu cut short, %zu mutations\n", corpus.size(), cuts, mutations);
  return 0;
}

#endif
