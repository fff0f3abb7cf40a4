// fox-simulate-calls: the simulation of the call layer as a program: days until so many events have
// happened, or one seed to look at. Exit 0: no violation; 1: a violation, with the command that
// replays it; 2: usage.
#include <cstdio>
#include <string>

#include "engine/base/flag_set.h"
#include "tests/server/calls/sim/call_day.h"

int main(int argc, char** argv) {
  int64_t seed = 0, first_seed = 1, events = 10'000'000, days = 0;
  fox::sim::CallDayOptions options;
  constexpr int64_t kMax = int64_t{1} << 62;
  bool help = false;
  fox::FlagSet flags;
  flags.Int("seed", "N", "one day alone", 0, kMax, &seed);
  flags.Int("first-seed", "N", "of many days", 1, kMax, &first_seed);
  flags.Int("events", "N", "days until so many have happened", 1, kMax, &events);
  flags.Int("days", "N", "at most so many days; 0: any", 0, kMax, &days);
  flags.Int("operations", "N", "of a day's load", 1, kMax, &options.operations);
  flags.Bool("print", "print each event", &options.print);
  flags.Action("help", "this text", &help);
  const absl::Status status = flags.Parse({argv + 1, argv + argc});
  if (!status.ok()) {
    std::fprintf(stderr, "fox-simulate-calls: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  if (help) {
    std::printf("%s", flags.Help().c_str());
    return 0;
  }
  using fox::sim::CallMark;
  fox::sim::CallMarks marks;
  options.seed = static_cast<uint64_t>(seed > 0 ? seed : first_seed);
  for (int64_t day = 0; days == 0 || day < days; ++day, ++options.seed) {
    const fox::sim::CallReport report = fox::sim::SimulateCalls(options);
    if (!report.violation.empty()) {
      std::printf("%s\n", Describe(options, report).c_str());
      return 1;
    }
    marks.Add(report.marks);
    if (seed > 0 || marks[CallMark::kEvents] >= events) break;
  }
  for (size_t i = 0; i < fox::sim::kCallMarkCount; ++i) {
    const auto mark = static_cast<CallMark>(i);
    std::printf("%-18s %lld\n", Name(mark).c_str(), static_cast<long long>(marks[mark]));
  }
  return 0;
}
