// A tokenizer by lines of JSON, for comparisons in Python. tokenizer_lines DIR VOCABULARY_SIZE
// reads lines of {"text": .., "special": bool}, {"ids": .., "skip": bool} or {"messages": ..} and
// writes for each a line with the ids, the text or {"error": ..}.
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/tokenizer/chat_format.h"
#include "models/tokenizer/token_stream.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {
namespace {

using Json = nlohmann::json;

Json Error(const absl::Status& status) { return {{"error", status.ToString()}}; }

Json IdsOr(const absl::StatusOr<std::vector<int32_t>>& ids) {
  return ids.ok() ? Json(*ids) : Error(ids.status());
}

Json Answer(const Json& line, const Tokenizer& tokenizer, const std::optional<ChatFormat>& chat) {
  if (line.contains("text")) {
    return IdsOr(tokenizer.Encode(line["text"].get<std::string>(), line.value("special", false)));
  }
  if (line.contains("ids")) {
    return Detokenize(tokenizer, line["ids"].get<std::vector<int32_t>>(),
                      line.value("skip", false));
  }
  if (!chat.has_value()) return {{"error", "no chat_format.json"}};
  std::vector<ChatMessage> messages;
  for (const Json& message : line["messages"]) {
    messages.push_back({message["role"], message["content"]});
  }
  return IdsOr(chat->Encode(tokenizer, messages, messages.back().role != "assistant", false));
}

int Run(const std::string& dir, int64_t vocab_size) {
  const auto tokenizer = LoadTokenizer(dir, vocab_size);
  if (!tokenizer.ok() || *tokenizer == nullptr) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  const auto chat = ChatFormat::Load(dir, **tokenizer);
  if (!chat.ok()) {
    std::cerr << chat.status() << "\n";
    return 1;
  }
  const Tokenizer::Info& info = (*tokenizer)->info();
  std::cout << Json{{"kind", info.kind},
                    {"vocab_size", info.vocab_size},
                    {"bos", info.bos_id.value_or(-1)},
                    {"eos", info.eos_id.value_or(-1)},
                    {"stop", chat->has_value() ? (*chat)->stop_id().value_or(-1) : -1}}
                   .dump()
            << "\n";
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(Json::parse(line), **tokenizer, *chat).dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace fox

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return fox::Run(argv[1], std::atoll(argv[2]));
}
