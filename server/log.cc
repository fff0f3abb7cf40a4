// Log: see log.h. A line is one write, so lines of several threads do not mix.
#include "server/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <ctime>

namespace fox {
namespace {

LogLevel g_least = LogLevel::kInfo;
LogFormat g_format = LogFormat::kText;

constexpr const char* kNames[] = {"debug", "info", "warning", "error"};

std::string Timestamp() {
  timeval now{};
  gettimeofday(&now, nullptr);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char day[32], full[48];
  std::strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(full, sizeof(full), "%s.%03dZ", day, static_cast<int>(now.tv_usec / 1000));
  return full;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

LogField::LogField(const char* k, double v) : key(k) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.6g", v);
  text = buffer;
  quoted = !std::isfinite(v);  // JSON has no infinity
}

void ConfigureLog(LogLevel least, LogFormat format) {
  g_least = least;
  g_format = format;
}

bool ParseLogLevel(const std::string& name, LogLevel* level) {
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) {
      *level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void Log(LogLevel level, const char* event, const std::vector<LogField>& fields) {
  if (level < g_least) return;
  const char* name = kNames[static_cast<int>(level)];
  std::string line;
  if (g_format == LogFormat::kJson) {
    line =
        "{\"time\":\"" + Timestamp() + "\",\"level\":\"" + name + "\",\"event\":\"" + event + "\"";
    for (const LogField& field : fields) {
      line += std::string(",\"") + field.key + "\":";
      line += field.quoted ? Quoted(field.text) : field.text;
    }
    line += "}\n";
  } else {
    line = Timestamp() + " " + name + " " + event;
    for (const LogField& field : fields) {
      line += std::string(" ") + field.key + "=";
      const bool plain = field.text.find_first_of(" \"\\\n\t\r") == std::string::npos;
      line += plain ? field.text : Quoted(field.text);
    }
    line += "\n";
  }
  // Nothing can be done about a log that cannot be written.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace fox
