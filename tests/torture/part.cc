// Part's flags, messages and result line; and measurements of a process from /proc.
#include "tests/torture/part.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fox {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Part::Parse(FlagSet* flags, const std::vector<std::string>& arguments) {
  int64_t seed = 1;
  bool help = false;
  flags->Double("seconds", "S", "time limit; the part then ends early", 0.1, 1e6, &seconds_);
  flags->Int("seed", "N", "seed of all random choices", 0, int64_t{1} << 40, &seed);
  flags->Action("help", "print this and exit", &help);
  const absl::Status status = flags->Parse(arguments);
  if (help) {
    std::fputs(flags->Help().c_str(), stdout);
    std::exit(0);
  }
  if (!status.ok() || !flags->positional().empty()) {
    std::fprintf(stderr, "fox-torture %s: %s\n", name_.c_str(),
                 status.ok() ? "unexpected argument" : std::string(status.message()).c_str());
    std::exit(2);
  }
  seed_ = static_cast<uint64_t>(seed);
}

void Part::Check(bool holds, const std::string& what) {
  if (holds) return;
  const MutexLock lock(mutex_);
  if (broken_.size() >= 50) return;
  if (!broken_.contains(what)) {
    std::fprintf(stderr, "%s: BROKEN: %s\n", name_.c_str(), what.c_str());
    broken_[what] = 0;
  }
  broken_[what] = broken_[what].get<int64_t>() + 1;
}

void Part::Set(const std::string& figure, const nlohmann::json& value) {
  const MutexLock lock(mutex_);
  figures_[figure] = value;
}

void Part::ReportProgress(int64_t done, int64_t all) {
  const MutexLock lock(mutex_);
  if (SecondsSince(reported_) < 5) return;
  reported_ = std::chrono::steady_clock::now();
  std::fprintf(stderr, "%s: %lld of %lld after %.0f s\n", name_.c_str(),
               static_cast<long long>(done), static_cast<long long>(all), SecondsSince(start_));
}

int Part::Finish() {
  const MutexLock lock(mutex_);
  nlohmann::json line = {{"part", name_}, {"passed", broken_.empty()}, {"seed", seed_}};
  line["seconds"] = std::round(SecondsSince(start_) * 100) / 100;
  line["figures"] = figures_;
  if (!broken_.empty()) line["broken"] = broken_;
  using Json = nlohmann::json;
  std::printf("%s\n", line.dump(-1, ' ', true, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
  return broken_.empty() ? 0 : 1;
}

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(values.size())));
  const size_t index = std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(index), values.end());
  return values[index];
}

ServerStart Quiet(const std::string& program, std::vector<std::string> flags,
                  const ServerPorts& ports) {
  const char* log = std::getenv("FOX_TORTURE_LOG");
  return {program, std::move(flags), ports, {}, log == nullptr ? "/dev/null" : log};
}

namespace {

int64_t CountEntries(const std::string& folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  return error ? 0 : std::distance(begin(entries), end(entries));
}

}  // namespace

int64_t CountDescriptors(int pid) { return CountEntries(absl::StrCat("/proc/", pid, "/fd")); }
int64_t CountThreads(int pid) { return CountEntries(absl::StrCat("/proc/", pid, "/task")); }

}  // namespace fox
