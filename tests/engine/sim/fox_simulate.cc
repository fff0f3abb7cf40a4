// fox-simulate: the simulation as a program of its own. Runs many seeds up to a number of events,
// or a single seed. Exit 0: no violation; 1: a violation, with the command that replays it; 2:
// usage.
#include <chrono>
#include <cstdio>
#include <string>

#include "engine/base/flag_set.h"
#include "tests/engine/sim/simulation.h"

namespace fox::sim {
namespace {

struct Settings {
  int64_t seed = 0, first_seed = 1, events = 100'000'000, operations = kDayOperations;
  int64_t seconds = 0, days = 0, chunk_multiple = 0;
  bool flood = false, print = false, shrink = false;
};

void PrintMarks(const Marks& marks) {
  for (size_t i = 0; i < kMarkCount; ++i) {
    const auto mark = static_cast<Mark>(i);
    std::printf("%-20s %lld\n", Name(mark).c_str(), static_cast<long long>(marks[mark]));
  }
}

DayOptions OptionsOf(const Settings& settings, int64_t seed) {
  DayOptions options;
  options.seed = static_cast<uint64_t>(seed);
  options.operations = settings.operations;
  options.chunk_multiple = settings.chunk_multiple;
  options.flood = settings.flood;
  return options;
}

int RunOne(const Settings& settings) {
  DayOptions options = OptionsOf(settings, settings.seed);
  options.print = settings.print && !settings.shrink;
  Report report = Simulate(options);
  if (!report.violation.empty() && settings.shrink) {
    options = Shrink(options);
    options.print = settings.print;
    report = Simulate(options);
    std::printf(
        "%lld operations are left of %lld\n",
        static_cast<long long>(options.operations) - static_cast<long long>(options.without.size()),
        static_cast<long long>(options.operations));
  }
  if (!report.violation.empty()) {
    std::printf("%s\n", Describe(options, report).c_str());
    return 1;
  }
  PrintMarks(report.marks);
  std::printf("longest_wait         %.3f\n", report.longest_wait);
  std::printf("trace                %016llx\n", static_cast<unsigned long long>(report.trace));
  return 0;
}

int RunMany(const Settings& settings) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  DayOptions options = OptionsOf(settings, settings.first_seed);
  Marks marks;
  int64_t days = 0;
  double longest_wait = 0;
  uint64_t longest_wait_seed = 0;
  std::string violation;
  for (; violation.empty() && marks[Mark::kEvents] < settings.events; ++options.seed, ++days) {
    if (settings.seconds > 0 && seconds() >= static_cast<double>(settings.seconds)) break;
    if (settings.days > 0 && days >= settings.days) break;
    const Report report = Simulate(options);
    marks.Add(report.marks);
    if (report.longest_wait > longest_wait) {
      longest_wait = report.longest_wait;
      longest_wait_seed = options.seed;
    }
    if (!report.violation.empty()) violation = Describe(options, report);
  }
  PrintMarks(marks);
  std::printf("%lld seeds, %.1f s, %.2f million events/s\n", static_cast<long long>(days),
              seconds(), static_cast<double>(marks[Mark::kEvents]) / seconds() / 1e6);
  std::printf("longest wait under a flood: %.3f of its bound, seed %llu\n", longest_wait,
              static_cast<unsigned long long>(longest_wait_seed));
  if (!violation.empty()) std::printf("VIOLATION\n%s\n", violation.c_str());
  return violation.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Settings settings;
  bool help = false;
  FlagSet flags;
  constexpr int64_t kMax = int64_t{1} << 50;
  flags.Int("seed", "N", "one day alone", 0, kMax, &settings.seed);
  flags.Int("first-seed", "N", "of many days", 1, kMax, &settings.first_seed);
  flags.Int("events", "N", "how many to run to", 1, kMax, &settings.events);
  flags.Int("days", "N", "how many seeds at most; 0: any", 0, kMax, &settings.days);
  flags.Int("seconds", "N", "the longest time; 0: any", 0, kMax, &settings.seconds);
  flags.Int("operations", "N", "of a day", 1, kMax, &settings.operations);
  flags.Int("chunk-multiple", "N", "the executor's, 1 or a multiple of 64; 0: any", 0, 1024,
            &settings.chunk_multiple);
  flags.Bool("flood", "end each day with a flood of newcomers", &settings.flood);
  flags.Bool("print", "print all that happens on a day", &settings.print);
  flags.Bool("shrink", "leave operations out that a failing day does not need", &settings.shrink);
  flags.Action("help", "this text", &help);
  const absl::Status status = flags.Parse({argv + 1, argv + argc});
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 2;
  }
  if (help) std::printf("%s", flags.Help().c_str());
  if (help) return 0;
  return settings.seed > 0 ? RunOne(settings) : RunMany(settings);
}

}  // namespace
}  // namespace fox::sim

int main(int argc, char** argv) { return fox::sim::Main(argc, argv); }
