// fox-simulate: the simulation as a program that needs nothing beside it: many seeds on all cores
// until so many events have happened, or one seed to look at. Exit 0: nothing was wrong; 1: a
// violation, with the command that replays it; 2: usage.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/flags/flag_set.h"
#include "tests/engine/sim/simulation.h"
#include "tests/engine/sim/small_scope.h"

namespace fox::sim {
namespace {

struct Settings {
  int64_t seed = 0, first_seed = 1, events = 100'000'000, operations = kDayOperations, threads = 1;
  int64_t scope = 0, seconds = 0, days = 0, chunk_multiple = 0;
  bool flood = false, print = false, shrink = false;
  std::string bug = "none";
};

void PrintMarks(const Marks& marks) {
  for (size_t i = 0; i < kMarkCount; ++i) {
    const auto mark = static_cast<Mark>(i);
    std::printf("%-20s %lld\n", Name(mark).c_str(), static_cast<long long>(marks[mark]));
  }
}

int RunOne(const Settings& settings) {
  DayOptions options;
  options.seed = static_cast<uint64_t>(settings.seed);
  options.operations = settings.operations;
  options.chunk_multiple = settings.chunk_multiple;
  options.bug = BugOf(settings.bug);
  options.flood = settings.flood;
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

class Campaign {
 public:
  explicit Campaign(const Settings& settings)
      : settings_(settings), next_seed_(static_cast<uint64_t>(settings.first_seed)) {}

  int Run() {
    const auto begin = std::chrono::steady_clock::now();
    deadline_ = begin + std::chrono::seconds(settings_.seconds);
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < settings_.threads; ++i) threads.emplace_back([this] { Work(); });
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    PrintMarks(marks_);
    std::printf("%lld seeds, %.1f s on %lld threads, %.2f million events/s\n",
                static_cast<long long>(days_), taken.count(),
                static_cast<long long>(settings_.threads),
                static_cast<double>(marks_[Mark::kEvents]) / taken.count() / 1e6);
    std::printf("longest wait under a flood: %.3f of its bound, seed %llu\n", longest_wait_,
                static_cast<unsigned long long>(longest_wait_seed_));
    if (!violation_.empty()) std::printf("VIOLATION\n%s\n", violation_.c_str());
    return violation_.empty() ? 0 : 1;
  }

 private:
  void Work() {
    while (!done_) {
      DayOptions options;
      options.seed = next_seed_++;
      options.operations = settings_.operations;
      options.chunk_multiple = settings_.chunk_multiple;
      options.bug = BugOf(settings_.bug);
      options.flood = settings_.flood;
      const Report report = Simulate(options);
      const std::lock_guard<std::mutex> lock(mutex_);
      marks_.Add(report.marks);
      ++days_;
      if (report.longest_wait > longest_wait_) {
        longest_wait_ = report.longest_wait;
        longest_wait_seed_ = options.seed;
      }
      if (!report.violation.empty() && violation_.empty()) violation_ = Describe(options, report);
      const bool late = (settings_.seconds > 0 && std::chrono::steady_clock::now() >= deadline_) ||
                        (settings_.days > 0 && days_ >= settings_.days);
      if (!violation_.empty() || late || marks_[Mark::kEvents] >= settings_.events) done_ = true;
    }
  }

  const Settings settings_;
  std::chrono::steady_clock::time_point deadline_;
  std::atomic<uint64_t> next_seed_;
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  Marks marks_;
  int64_t days_ = 0;
  double longest_wait_ = 0;
  uint64_t longest_wait_seed_ = 0;
  std::string violation_;
};

int RunScope(int64_t depth) {
  const ScopeReport report = ExploreSmallScope(static_cast<int>(depth));
  std::printf("%lld days, %lld steps\n", static_cast<long long>(report.days),
              static_cast<long long>(report.marks[Mark::kSteps]));
  if (!report.violation.empty()) std::printf("VIOLATION\n%s\n", report.violation.c_str());
  return report.violation.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Settings settings;
  bool help = false, bugs = false;
  FlagSet flags;
  constexpr int64_t kMost = int64_t{1} << 50;
  flags.Int("seed", "N", "one day alone", 0, kMost, &settings.seed);
  flags.Int("first-seed", "N", "of many days", 1, kMost, &settings.first_seed);
  flags.Int("events", "N", "how many to run to", 1, kMost, &settings.events);
  flags.Int("days", "N", "how many seeds at most; 0: any", 0, kMost, &settings.days);
  flags.Int("seconds", "N", "the longest time; 0: any", 0, kMost, &settings.seconds);
  flags.Int("operations", "N", "of a day", 1, kMost, &settings.operations);
  flags.Int("threads", "N", "how many", 1, 1024, &settings.threads);
  flags.Int("scope", "DEPTH", "every order of so many events instead", 0, 64, &settings.scope);
  flags.String("bug", "NAME", "a bug to plant", &settings.bug);
  flags.Int("chunk-multiple", "N", "the executor's, 1 or a multiple of 64; 0: any", 0, 1024,
            &settings.chunk_multiple);
  flags.Bool("flood", "end each day with a flood of newcomers", &settings.flood);
  flags.Bool("print", "print all that happens on a day", &settings.print);
  flags.Bool("shrink", "leave operations out that a failing day does not need", &settings.shrink);
  flags.Action("bugs", "list the bugs", &bugs);
  flags.Action("help", "this text", &help);
  const absl::Status status =
      flags.Parse({argv + 1, argv + argc}, [](const std::string&) { return nullptr; });
  if (!status.ok() || BugOf(settings.bug) == Bug::kCount) {
    std::fprintf(stderr, "%s\n", status.ok() ? "no such bug" : status.ToString().c_str());
    return 2;
  }
  if (help) std::printf("%s", flags.Help().c_str());
  if (bugs) {
    for (int i = 0; i < kBugCount; ++i) std::printf("%s\n", Name(static_cast<Bug>(i)).c_str());
  }
  if (help || bugs) return 0;
  if (settings.scope > 0) return RunScope(settings.scope);
  return settings.seed > 0 ? RunOne(settings) : Campaign(settings).Run();
}

}  // namespace
}  // namespace fox::sim

int main(int argc, char** argv) { return fox::sim::Main(argc, argv); }
