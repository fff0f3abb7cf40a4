// Part: one of fox-torture's commands: its flags, what it says while it runs, and the one line of
// JSON that it ends with.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/flag_set.h"
#include "engine/base/mutex.h"
#include "nlohmann/json.hpp"
#include "tests/fixtures/server_process.h"

namespace fox {

// Bounds of memory and time hold for programs without instrumentation.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kInstrumented = true;
#else
inline constexpr bool kInstrumented = false;
#endif

double SecondsSince(std::chrono::steady_clock::time_point start);

// Any thread may call.
class Part {
 public:
  explicit Part(std::string name) : name_(std::move(name)) {}

  // Registers the flags that every part has, and parses; exits with 2 on a wrong flag.
  void Parse(FlagSet* flags, const std::vector<std::string>& arguments);

  // `holds` is a promise; a broken one is told once for each `what` and fails the part.
  void Check(bool holds, const std::string& what);
  // The same for bounds of memory and time.
  void CheckCost(bool holds, const std::string& what) { Check(holds || kInstrumented, what); }
  void Set(const std::string& figure, const nlohmann::json& value);
  // Says how far it is on standard error, each few seconds at most.
  void Tell(int64_t done, int64_t all);
  // Whether the time that the part may take is over: what is running is to come to its end.
  bool OutOfTime() const { return SecondsSince(start_) > seconds_; }
  double seconds() const { return seconds_; }
  uint64_t seed() const { return seed_; }

  // Prints the line; the exit code.
  int Finish();

 private:
  const std::string name_;
  double seconds_ = 86400;
  uint64_t seed_ = 1;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Mutex mutex_;
  nlohmann::json figures_ ABSL_GUARDED_BY(mutex_);
  nlohmann::json broken_ ABSL_GUARDED_BY(mutex_) = nlohmann::json::object();  // what: how often
  std::chrono::steady_clock::time_point told_ ABSL_GUARDED_BY(mutex_) = start_;
};

// What is measured of many times or sizes: the share `p` of them is at most the result.
double Percentile(std::vector<double> values, double p);

// A server with all its ports, whose standard error is lost, unless FOX_TORTURE_LOG names a file.
ServerStart Quiet(const std::string& program, std::vector<std::string> flags,
                  const ServerPorts& ports = {0, 0, 0});

// Resident bytes of a process, and how many descriptors and threads it has; 0: it is gone.
int64_t ResidentBytes(int pid);
int64_t CountDescriptors(int pid);
int64_t CountThreads(int pid);
// Processor time that a process has used, in seconds; 0: it is gone.
double CpuSeconds(int pid);

using Arguments = std::vector<std::string>;
int TortureCancels(const Arguments& arguments);   // cancels, disconnects and deadlines
int TortureStreams(const Arguments& arguments);   // thousands of open streams
int TortureOverload(const Arguments& arguments);  // more than a server can do
int TortureKills(const Arguments& arguments);     // fox-server, killed and stopped at any moment
int TortureSoak(const Arguments& arguments);      // fox-server, for long, at saturation

}  // namespace fox
