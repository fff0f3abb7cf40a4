// Log: one line for each event on standard error, as text or as JSON. Prompts and completions are
// never logged. Any thread may call, and no thread waits for the reader of standard error: lines
// that the reader does not take are dropped, and a later line reports how many.
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

// Call once, before other threads run. Events below level `least` are not logged.
void ConfigureLog(LogLevel least, LogFormat format);
LogFormat CurrentLogFormat();

// Logs an event. `event` is a fixed phrase; values go into `fields`.
void Log(LogLevel level, const char* event, const std::vector<LogField>& fields = {});
// Logs lines for people, unchanged; under LogFormat::kJson it does nothing.
void LogText(const std::string& lines);

// Waits at most `seconds` until all lines are written or dropped. True if they are.
bool FlushLog(double seconds);
// Lines dropped since the start.
int64_t DroppedLogLines();

// LogLimit: limits how often an event may be logged, so that a flood of refusals is no flood of
// lines. One thread at a time.
class LogLimit {
 public:
  LogLimit(int lines, double seconds) : lines_(lines), seconds_(seconds) {}

  // Asks to log a line at `now`, in seconds of any clock that starts at 0 or later. At most `lines`
  // lines in each `seconds` are allowed. Returns nullopt if the line must be left out, else the
  // number of lines left out since the last one.
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

// Writes a line of level error at once, or not at all if that would block, for a process about to
// end. Allocates nothing and takes no lock, so signal handlers may call it. `event` needs no
// quoting.
void WriteLastLine(const char* event, const char* reason);

}  // namespace fox
