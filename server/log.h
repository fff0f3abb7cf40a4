// Log: one line for each event on standard error, as text or as JSON. Prompts and completions are
// never logged. Any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fox {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// A key and its value; numbers stay numbers in JSON.
struct LogField {
  LogField(const char* k, const std::string& v) : key(k), text(v), quoted(true) {}
  LogField(const char* k, const char* v) : LogField(k, std::string(v)) {}
  LogField(const char* k, int64_t v) : key(k), text(std::to_string(v)) {}
  LogField(const char* k, double v);

  const char* key;
  std::string text;
  bool quoted = false;
};

// Set once, before other threads run.
void ConfigureLog(LogLevel least, LogFormat format);
bool ParseLogLevel(const std::string& name, LogLevel* level);

// `event` is a fixed phrase; what varies goes into `fields`.
void Log(LogLevel level, const char* event, const std::vector<LogField>& fields = {});

}  // namespace fox
