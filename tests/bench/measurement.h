// Clocks, summaries of samples, and the report that all benchmarks write: a table line and a JSON
// row for each measurement.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace fox {

// Seconds of a monotonic clock.
double Now();

// Processor time of all threads of the process in seconds. Other programs on the machine hardly
// change it.
double CpuNow();

struct Summary {
  double median = 0, min = 0, max = 0;
};

// REQUIRES: samples is not empty.
Summary Summarize(std::vector<double> samples);
nlohmann::ordered_json ToJson(const Summary& summary);

class BenchReport {
 public:
  // Prints a heading of a table.
  void Section(const std::string& title, const std::string& columns);
  // Prints `line` and keeps `row`, whose key "bench" names the benchmark.
  void Row(const std::string& line, nlohmann::ordered_json row);
  void Note(const std::string& line);

  // Facts about the run beside the rows: machine, peaks, load.
  nlohmann::ordered_json& facts() { return facts_; }
  const nlohmann::ordered_json& rows() const { return rows_; }
  // Writes facts and rows as JSON into a file; does nothing if the name is empty.
  absl::Status Write(const std::string& file) const;

 private:
  nlohmann::ordered_json facts_ = nlohmann::ordered_json::object();
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace fox
