// What a tokenizer of ours says and does, for tests in other languages: the first line of output is
// its tokenizer.json, then one line for each line of input (a text as a JSON string): an object of
// its `ids` and of the `text` that these ids give when they continue a prompt.
//
//     print_tokenizer_json MODEL_DIR VOCAB_SIZE
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/tokenizer/token_stream.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {
namespace {

int Print(const std::string& dir, int64_t vocab_size) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = LoadTokenizer(dir, vocab_size);
  if (!loaded.ok() || *loaded == nullptr) return EXIT_FAILURE;
  const Tokenizer& tokenizer = (*loaded)->Unescaped();
  const absl::StatusOr<std::string> json = tokenizer.ToJson();
  if (!json.ok()) return EXIT_FAILURE;
  std::cout << *json << "\n";
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    const std::vector<int32_t> ids = *tokenizer.Encode(text, /*add_special_tokens=*/false);
    TokenStream stream(tokenizer, /*skip_special=*/true, /*at_text_start=*/false);
    std::string decoded;
    for (int32_t id : ids) decoded += stream.Push(id);
    decoded += stream.Finish();
    std::cout << nlohmann::json{{"ids", ids}, {"text", decoded}}.dump() << "\n";
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace fox

int main(int argc, char** argv) {
  return argc == 3 ? fox::Print(argv[1], std::atoll(argv[2])) : EXIT_FAILURE;
}
