// Medians, table lines and JSON rows.
#include "tests/bench/measurement.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>

namespace fox {

double Now() {
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return now.count();
}

double CpuNow() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Summary Summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  const double median = n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
  return {median, samples.front(), samples.back()};
}

nlohmann::ordered_json ToJson(const Summary& summary) {
  return {{"median", summary.median}, {"min", summary.min}, {"max", summary.max}};
}

void BenchReport::Section(const std::string& title, const std::string& columns) {
  std::printf("\n%s\n%s\n", title.c_str(), columns.c_str());
}

void BenchReport::Row(const std::string& line, nlohmann::ordered_json row) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  rows_.push_back(std::move(row));
}

void BenchReport::Note(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

absl::Status BenchReport::Write(const std::string& file) const {
  if (file.empty()) return absl::OkStatus();
  nlohmann::ordered_json json = facts_;
  json["rows"] = rows_;
  std::ofstream out(file);
  out << json.dump(1) << '\n';
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError("cannot write " + file);
}

}  // namespace fox
