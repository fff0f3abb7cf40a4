// Files for tokenizer tests: reading those of the repository, and model directories made on the
// spot that vanish with their object.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "models/tokenizer/tokenizer.h"

namespace fox {

inline std::string ReadTestFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::string RepositoryFile(const std::string& name) {
  return ReadTestFile(std::string(FOX_SOURCE_DIR) + "/" + name);
}

class TestDir {
 public:
  TestDir() {
    std::string path = (std::filesystem::temp_directory_path() / "fox_tokenizer_XXXXXX").string();
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TestDir() { std::filesystem::remove_all(path_); }
  TestDir(const TestDir&) = delete;
  TestDir& operator=(const TestDir&) = delete;

  TestDir& Write(const std::string& name, const std::string& content) {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return *this;
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

constexpr int64_t kGpt2Vocab = 50257;
constexpr int64_t kDemoVocab = 8192;

// The tokenizer in `dir`, which must load.
inline std::unique_ptr<Tokenizer> MustLoad(const std::string& dir, int64_t vocab_size) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(dir, vocab_size);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  if (!tokenizer.ok()) std::abort();
  EXPECT_NE(*tokenizer, nullptr);
  return *std::move(tokenizer);
}

inline std::unique_ptr<Tokenizer> LoadGpt2(const std::string& tokenizer_config) {
  TestDir dir;
  dir.Write("vocab.json", RepositoryFile("tests/models/tokenizer/gpt2/vocab.json"))
      .Write("merges.txt", RepositoryFile("tests/models/tokenizer/gpt2/merges.txt"))
      .Write("tokenizer_config.json", tokenizer_config);
  return MustLoad(dir.path(), kGpt2Vocab);
}

inline std::unique_ptr<Tokenizer> LoadLongCrawl64() {
  return LoadGpt2(R"({"tokenizer_class": "JSONGPT2Tokenizer", "add_bos_token": true})");
}

inline std::unique_ptr<Tokenizer> LoadSmall() {
  TestDir dir;
  dir.Write("tokenizer.json", RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
  return MustLoad(dir.path(), 1000);
}

inline std::unique_ptr<Tokenizer> LoadDemo() {
  TestDir dir;
  dir.Write("tokenizer.model", RepositoryFile("models/demo/tokenizer.model"));
  return MustLoad(dir.path(), kDemoVocab);
}

}  // namespace fox
