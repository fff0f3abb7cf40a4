// Log: makes the lines, as text or JSON, and the process's one LineWriter.
#include "server/process/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/process/line_writer.h"

namespace fox {
namespace {

constexpr size_t kMaxWaitingBytes = 1 << 20;

std::atomic<LogLevel> g_least{LogLevel::kInfo};
std::atomic<LogFormat> g_format{LogFormat::kText};

constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
static_assert(std::size(kNames) == static_cast<size_t>(LogLevel::kError) + 1);
// WriteLastLine reads the format in signal handlers.
static_assert(std::atomic<LogFormat>::is_always_lock_free);

struct Timestamp {
  char text[32];
};

// UTC with milliseconds, by arithmetic alone: gmtime takes a lock.
Timestamp Now() {
  namespace chrono = std::chrono;
  const auto now = chrono::floor<chrono::milliseconds>(chrono::system_clock::now());
  const auto midnight = chrono::floor<chrono::days>(now);
  const chrono::year_month_day day(midnight);
  const auto ms = static_cast<int>((now - midnight).count());
  Timestamp out{};
  std::snprintf(out.text, sizeof(out.text), "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ",
                static_cast<int>(day.year()), static_cast<unsigned>(day.month()),
                static_cast<unsigned>(day.day()), ms / 3600000, ms / 60000 % 60, ms / 1000 % 60,
                ms % 1000);
  return out;
}

// The text as a JSON string; bytes that are not UTF-8 are replaced.
std::string Quoted(const std::string& text) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false, kReplace);
}

// True if the text reads as one word, so that it cannot forge a line or a field.
bool IsPlain(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f || c == '"' || c == '\\';
  });
}

std::string Line(LogLevel level, const char* event, const std::vector<LogField>& fields) {
  const bool json = g_format == LogFormat::kJson;
  const char* name = kNames[static_cast<int>(level)];
  std::string line = json ? absl::StrCat("{\"time\":\"", Now().text, "\",\"level\":\"", name,
                                         "\",\"event\":\"", event, "\"")
                          : absl::StrCat(Now().text, " ", name, " ", event);
  for (const LogField& field : fields) {
    const bool quoted = json ? field.quoted : !IsPlain(field.text);
    absl::StrAppend(&line, json ? "," : " ", json ? Quoted(field.key) : field.key, json ? ":" : "=",
                    quoted ? Quoted(field.text) : field.text);
  }
  return line + (json ? "}\n" : "\n");
}

// Never destroyed, because threads may log until the process ends.
LineWriter& Writer() {
  static auto* const writer = new LineWriter(STDERR_FILENO, kMaxWaitingBytes, [](int64_t dropped) {
    return Line(LogLevel::kWarning, "log lines dropped", {{"lines", dropped}});
  });
  return *writer;
}

}  // namespace

LogField::LogField(std::string k, double v)
    : key(std::move(k)),
      text(absl::StrCat(v)),
      quoted(!std::isfinite(v)) {}  // JSON has no infinity

void ConfigureLog(LogLevel least, LogFormat format) {
  g_least = least;
  g_format = format;
}

LogFormat CurrentLogFormat() { return g_format; }

void Log(LogLevel level, const char* event, const std::vector<LogField>& fields) {
  if (level >= g_least.load()) Writer().Add(Line(level, event, fields));
}

void LogText(const std::string& lines) {
  if (g_format == LogFormat::kText) Writer().Add(lines);
}

bool FlushLog(double seconds) { return Writer().Flush(seconds); }

int64_t DroppedLogLines() { return Writer().dropped(); }

void WriteLastLine(const char* event, const char* reason) {
  char line[512], word[256] = {};
  for (size_t i = 0; i + 1 < sizeof(word) && reason[i] != '\0'; ++i) {
    const char c = reason[i];
    word[i] = c < 0x20 || c > 0x7e || c == '"' || c == '\\' ? '_' : c;
  }
  const char* format =
      g_format == LogFormat::kJson
          ? "{\"time\":\"%s\",\"level\":\"error\",\"event\":\"%s\",\"reason\":\"%s\"}\n"
          : "%s error %s reason=\"%s\"\n";
  const int length = std::snprintf(line, sizeof(line), format, Now().text, event, word);
  // A pipe that polls as writable takes PIPE_BUF bytes without blocking.
  static_assert(sizeof(line) <= PIPE_BUF);
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (length <= 0 || poll(&ready, 1, 0) != 1) return;
  const size_t size = std::min(static_cast<size_t>(length), sizeof(line) - 1);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, size);
}

}  // namespace fox
