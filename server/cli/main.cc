// fox-cli: a client for a running fox-server. This file selects the command; read connection.h
// next.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/cli/connection.h"

namespace fox::cli {
namespace {

constexpr const char* kHelp =
    "fox-cli sends requests to a fox-server.\n\n"
    "usage: fox-cli COMMAND [arguments] [flags]     fox-cli COMMAND --help\n\n"
    "  generate PROMPT     continue a text, streamed\n"
    "  chat                a conversation: each line of standard input is a turn\n"
    "  score TEXT          log-probabilities of a text\n"
    "  tokenize TEXT       ids of a text\n"
    "  detokenize IDS      text of ids\n"
    "  health [SERVICE]    whether the server is serving (exit code 0) or not (1)\n"
    "  info                the server, its model and its load, as JSON\n"
    "  drain               stop taking requests\n"
    "  undrain             take requests again\n"
    "  flush-cache         empty the prefix cache\n\n"
    "A text is an argument, @FILE, or - for standard input.\n";

struct Command {
  const char* name;
  int (*run)(const std::vector<std::string>& arguments);
};

constexpr Command kCommands[] = {{"generate", Generate},
                                 {"chat", Chat},
                                 {"score", Score},
                                 {"tokenize", Tokenize},
                                 {"detokenize", Detokenize},
                                 {"health", Health},
                                 {"info", Info},
                                 {"drain", Drain},
                                 {"undrain", Undrain},
                                 {"flush-cache", FlushCache}};

int Main(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(kHelp, stderr);
    return kExitUsage;
  }
  const std::string& name = arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(kHelp, stdout);
    return kExitOk;
  }
  if (name == "--version") {
    std::printf("fox-cli %s\n", FOX_VERSION);
    return kExitOk;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run({arguments.begin() + 1, arguments.end()});
    names.push_back(command.name);
  }
  const std::string suggestion = Suggestion(name, names, "");
  return UsageError("unknown command " + name.substr(0, 64) +
                    (suggestion.empty() ? "; fox-cli --help lists them" : suggestion));
}

}  // namespace
}  // namespace fox::cli

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // errors are reported on one line
  return fox::cli::Main(std::vector<std::string>(argv + 1, argv + argc));
}
