// fox-torture: long loads that a server must survive, one command for each part. A flag of the part
// sets its amount. The part reports progress on standard error and ends with one line of JSON that
// holds its figures; exit code 1: a promise was broken. `./run torture` runs all parts, ctest runs
// each for a moment.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "server/process/process_settings.h"
#include "tests/torture/part.h"

int main(int argc, char** argv) {
  // The settings of fox-server, as the parts measure a server's memory and time in this process.
  fox::ApplyProcessSettings();
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);

  const std::map<std::string, int (*)(const fox::Arguments&)> parts = {
      {"cancels", fox::TortureCancels}, {"kills", fox::TortureKills}, {"soak", fox::TortureSoak}};
  const auto part = argc > 1 ? parts.find(argv[1]) : parts.end();
  if (part == parts.end()) {
    std::fputs("usage: fox-torture PART [flags]     (fox-torture PART --help lists them)\n",
               stderr);
    for (const auto& [name, run] : parts) std::fprintf(stderr, "  %s\n", name.c_str());
    return 2;
  }
  return part->second(fox::Arguments(argv + 2, argv + argc));
}
