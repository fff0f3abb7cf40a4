// Part: one command of fox-torture: its flags, its progress messages, the promises that it checks,
// and the line of JSON at its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/flag_set.h"
#include "engine/base/mutex.h"
#include "nlohmann/json.hpp"
#include "tests/fixtures/server_process.h"
#include "tests/fixtures/test_core.h"

namespace fox {

double SecondsSince(std::chrono::steady_clock::time_point start);

// Thread-safe, except for Parse and Finish.
class Part {
 public:
  explicit Part(std::string name) : name_(std::move(name)) {}

  // Adds the flags that every part has and parses `arguments`. Exits with 2 on a wrong flag.
  void Parse(FlagSet* flags, const std::vector<std::string>& arguments);

  // Checks the promise `holds`. A broken promise fails the part; it is counted by its name `what`
  // and printed the first time.
  void Check(bool holds, const std::string& what);
  // Checks a bound of memory or time, which holds only in builds without a sanitizer.
  void CheckCost(bool holds, const std::string& what) { Check(holds || kInstrumented, what); }
  void Set(const std::string& figure, const nlohmann::json& value);
  // Prints progress on standard error, at most every five seconds.
  void ReportProgress(int64_t done, int64_t all);
  // True if the part has run longer than --seconds and should end.
  bool OutOfTime() const { return SecondsSince(start_) > seconds_; }
  double seconds() const { return seconds_; }
  uint64_t seed() const { return seed_; }

  // Prints the line of JSON and returns the exit code.
  int Finish();

 private:
  const std::string name_;
  double seconds_ = 86400;
  uint64_t seed_ = 1;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Mutex mutex_;
  nlohmann::json figures_ ABSL_GUARDED_BY(mutex_);
  nlohmann::json broken_ ABSL_GUARDED_BY(mutex_) = nlohmann::json::object();  // what: how often
  std::chrono::steady_clock::time_point reported_ ABSL_GUARDED_BY(mutex_) = start_;
};

// The least value that the share `p` of `values` does not exceed; 0 if there are none.
double Percentile(std::vector<double> values, double p);

// A start of fox-server with all ports. Its standard error goes to the file in FOX_TORTURE_LOG, or
// nowhere if that is not set.
ServerStart Quiet(const std::string& program, std::vector<std::string> flags,
                  const ServerPorts& ports = {0, 0, 0});

// Open descriptors and threads of a process; 0: it has ended.
int64_t CountDescriptors(int pid);
int64_t CountThreads(int pid);

using Arguments = std::vector<std::string>;
int TortureCancels(const Arguments& arguments);  // cancels, disconnects and deadlines
int TortureKills(const Arguments& arguments);    // fox-server, killed and stopped at any moment
int TortureSoak(const Arguments& arguments);     // fox-server at saturation for a long time

}  // namespace fox
