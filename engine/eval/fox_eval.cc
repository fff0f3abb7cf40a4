// fox-eval: measures a model offline, through the same path that serves requests; no gRPC. Each
// subcommand has a file of its own: eval_logits.cc (also greedy), eval_perplexity.cc, eval_acp.cc.
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "engine/eval/eval_command.h"

namespace {

constexpr int kConfigError = 78;  // EX_CONFIG
constexpr char kUsage[] =
    "usage: fox-eval COMMAND --model DIR [flags]     (fox-eval COMMAND --help lists them)\n"
    "  logits      logits of given token ids, to a safetensors file\n"
    "  greedy      greedy continuation of given token ids, as a JSON list\n"
    "  perplexity  loss, perplexity and bits per byte of a text\n"
    "  acp         pages that each head keeps under the paper's and the certified bound, and the\n"
    "              cost in loss, by position and by log eps\n";

struct Command {
  std::function<absl::Status(const fox::Arguments&)> run;
  const char* needs_less;  // names the flags that reduce its memory
};

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Command> commands = {
      {"logits", {fox::EvalLogits, "fewer --ids, a smaller --chunk"}},
      {"greedy", {fox::EvalGreedy, "fewer --ids, a smaller --new, a smaller --chunk"}},
      {"perplexity", {fox::EvalPerplexity, "a smaller --window, a smaller --chunk"}},
      {"acp", {fox::EvalAcp, "fewer --tokens"}}};
  const std::string name = argc > 1 ? argv[1] : "";
  const auto command = commands.find(name);
  if (command == commands.end()) {
    const bool asked = name == "--help" || name == "-h" || name == "help";
    std::fputs(kUsage, asked ? stdout : stderr);
    return asked ? 0 : 2;
  }
  const absl::Status status = command->second.run(fox::Arguments(argv + 2, argv + argc));
  if (status.ok()) return 0;
  std::string message(status.message());
  if (absl::IsResourceExhausted(status)) {
    message += std::string("; take ") + command->second.needs_less +
               " or another --device, or end other programs";
  }
  std::fprintf(stderr, "fox-eval %s: %s\n", name.c_str(), message.c_str());
  return kConfigError;
}
