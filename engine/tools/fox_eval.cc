// fox-eval: measures a model offline, through the same path that serves requests; no gRPC. Each
// subcommand has a file of its own: eval_logits.cc (also greedy), eval_perplexity.cc, eval_acp.cc.
#include <cstdio>
#include <functional>
#include <map>

#include "engine/tools/eval_command.h"

namespace {

constexpr int kConfigError = 78;  // EX_CONFIG
constexpr char kUsage[] =
    "usage: fox-eval COMMAND --model DIR [flags]     (fox-eval COMMAND --help lists them)\n"
    "  logits      logits of given token ids, to a safetensors file\n"
    "  greedy      greedy continuation of given token ids, as a JSON list\n"
    "  perplexity  loss, perplexity and bits per byte of a text\n"
    "  acp         what each head keeps under the paper's and the certified bound\n";

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<absl::Status(const fox::Arguments&)>> commands = {
      {"logits", fox::EvalLogits},
      {"greedy", fox::EvalGreedy},
      {"perplexity", fox::EvalPerplexity},
      {"acp", fox::EvalAcp}};
  const std::string name = argc > 1 ? argv[1] : "";
  const auto command = commands.find(name);
  if (command == commands.end()) {
    const bool asked = name == "--help" || name == "-h" || name == "help";
    std::fputs(kUsage, asked ? stdout : stderr);
    return asked ? 0 : 2;
  }
  const absl::Status status = command->second(fox::Arguments(argv + 2, argv + argc));
  if (status.ok()) return 0;
  std::fprintf(stderr, "fox-eval %s: %s\n", name.c_str(), std::string(status.message()).c_str());
  return kConfigError;
}
