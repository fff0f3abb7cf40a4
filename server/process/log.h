// Log: one line for each event on standard error, as text or as JSON. Prompts and completions are
// never logged. Any thread may call, and none waits for a reader of standard error: lines that it
// does not take are dropped, and a line tells how many were when it takes them again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fox {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// A key and its value; numbers stay numbers in JSON.
struct LogField {
  LogField(std::string k, const std::string& v) : key(std::move(k)), text(v), quoted(true) {}
  LogField(std::string k, const char* v) : LogField(std::move(k), std::string(v)) {}
  LogField(std::string k, int64_t v) : key(std::move(k)), text(std::to_string(v)) {}
  LogField(std::string k, double v);

  std::string key;
  std::string text;
  bool quoted = false;
};

// Set once, before other threads run.
void ConfigureLog(LogLevel least, LogFormat format);
LogFormat CurrentLogFormat();

// `event` is a fixed phrase; what varies goes into `fields`.
void Log(LogLevel level, const char* event, const std::vector<LogField>& fields = {});
// Lines as they are, for people: only under LogFormat::kText.
void LogText(const std::string& lines);

// Waits up to `seconds` until all lines are written. False: the log is not read.
bool FlushLog(double seconds);
// Lines lost since the start.
int64_t DroppedLogLines();

// How often a line about the same thing may be logged: a flood of refusals must not become a flood
// of lines. One thread at a time.
class LogLimit {
 public:
  LogLimit(int lines, double seconds) : lines_(lines), seconds_(seconds) {}

  // Whether a line may be logged at `now`, in seconds of any clock that starts at 0 or later: at
  // most `lines` in each `seconds`. The value: how many have been left out since the last one.
  std::optional<int64_t> Take(double now) {
    if (now >= end_) {
      end_ = now + seconds_;
      taken_ = 0;
    }
    if (++taken_ <= lines_) return std::exchange(left_out_, 0);
    ++left_out_;
    return std::nullopt;
  }

 private:
  const int lines_;
  const double seconds_;
  double end_ = 0;
  int64_t taken_ = 0, left_out_ = 0;
};

// A line of level error for a process about to end: written at once, or not at all if that would
// block. Allocates nothing and takes no lock: signal handlers may call. `event` is plain.
void WriteLastLine(const char* event, const char* reason);

}  // namespace fox
