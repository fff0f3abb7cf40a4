// fox-torture: what a server must survive for long, one command a part. Each takes how much of it
// as a flag, says on standard error how far it is, and prints one line of JSON with its figures;
// exit code 1: a promise was broken. `./run torture` runs them all, ctest each for a moment.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "server/process/process_settings.h"
#include "tests/torture/part.h"

int main(int argc, char** argv) {
  // As fox-server does: its memory and its time are measured here.
  fox::ApplyProcessSettings();
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);

  const std::map<std::string, int (*)(const fox::Arguments&)> parts = {
      {"cancels", fox::TortureCancels},
      {"kills", fox::TortureKills},
      {"overload", fox::TortureOverload},
      {"soak", fox::TortureSoak},
      {"streams", fox::TortureStreams}};
  const auto part = argc > 1 ? parts.find(argv[1]) : parts.end();
  if (part == parts.end()) {
    std::fputs("usage: fox-torture PART [flags]     (fox-torture PART --help lists them)\n",
               stderr);
    for (const auto& [name, run] : parts) std::fprintf(stderr, "  %s\n", name.c_str());
    return 2;
  }
  return part->second(fox::Arguments(argv + 2, argv + argc));
}
