// The tokenizers of the tests, loaded; loading must succeed.
#pragma once

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/tokenizer/tokenizer.h"
#include "tests/models/temporary_dir.h"

namespace fox {

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
  TemporaryDir dir;
  dir.Write("vocab.json", RepositoryFile("tests/models/tokenizer/gpt2/vocab.json"))
      .Write("merges.txt", RepositoryFile("tests/models/tokenizer/gpt2/merges.txt"))
      .Write("tokenizer_config.json", tokenizer_config);
  return MustLoad(dir.path(), kGpt2Vocab);
}

inline std::unique_ptr<Tokenizer> LoadLongCrawl64() {
  return LoadGpt2(R"({"tokenizer_class": "JSONGPT2Tokenizer", "add_bos_token": true})");
}

inline std::unique_ptr<Tokenizer> LoadSmall() {
  TemporaryDir dir;
  dir.Write("tokenizer.json", RepositoryFile("tests/models/tokenizer/small_tokenizer.json"));
  return MustLoad(dir.path(), 1000);
}

inline std::unique_ptr<Tokenizer> LoadWith(const std::string& file,
                                           const nlohmann::json& pre_tokenizer,
                                           const nlohmann::json& normalizer) {
  auto json = nlohmann::json::parse(RepositoryFile("tests/models/tokenizer/" + file));
  json["pre_tokenizer"] = pre_tokenizer;
  json["normalizer"] = normalizer;
  TemporaryDir dir;
  dir.Write("tokenizer.json", json.dump());
  return MustLoad(dir.path(), 2000);
}

inline nlohmann::json TokenizerVectors() {
  return nlohmann::json::parse(RepositoryFile("tests/models/tokenizer/vectors.json"));
}

// Llama 3's pattern, the text in form C first.
inline std::unique_ptr<Tokenizer> LoadLlama3() {
  return LoadWith("small_tokenizer.json", TokenizerVectors()["pretokenizers"][1][0],
                  {{"type", "NFC"}});
}

// Variant 0 has the normalizer of Llama 2; the last puts a space only in front of a text's start.
inline std::unique_ptr<Tokenizer> LoadFallback(size_t row) {
  const nlohmann::json steps = TokenizerVectors()["fallback"][row];
  return LoadWith("fallback_tokenizer.json", steps[0], steps[1]);
}

// Runs of up to 16 spaces are tokens, the longest of the lowest rank, as in Llama 2 and Mistral.
inline std::unique_ptr<Tokenizer> LoadLongestFirst() {
  auto json =
      nlohmann::json::parse(RepositoryFile("tests/models/tokenizer/fallback_tokenizer.json"));
  const auto run = [](int length) {
    std::string text;
    for (int i = 0; i < length; ++i) text += "\u2581";
    return text;
  };
  nlohmann::json& vocab = json["model"]["vocab"];
  nlohmann::json merges = nlohmann::json::array();
  for (int length = 16; length > 1; --length) {
    if (!vocab.contains(run(length))) vocab[run(length)] = vocab.size();
    for (int left = 1; left < length; ++left) merges.push_back({run(left), run(length - left)});
  }
  for (const auto& merge : json["model"]["merges"]) merges.push_back(merge);
  json["model"]["merges"] = merges;
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  TemporaryDir dir;
  dir.Write("tokenizer.json", json.dump());
  return MustLoad(dir.path(), 2000);
}

inline std::unique_ptr<Tokenizer> LoadDemo() {
  TemporaryDir dir;
  dir.Write("tokenizer.model", RepositoryFile("models/demo/tokenizer.model"));
  return MustLoad(dir.path(), kDemoVocab);
}

}  // namespace fox
