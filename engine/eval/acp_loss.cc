// AcpLoss: means and differences, overall and by position.
#include "engine/eval/acp_loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fox {
namespace {

constexpr int64_t kBuckets = 16;

// The losses of tokens first .. end - 1 of every window.
std::vector<double> Bucket(const std::vector<double>& losses, int64_t window, int64_t first,
                           int64_t end) {
  std::vector<double> bucket;
  const int64_t step = window - 1;
  for (int64_t at = 0; at < static_cast<int64_t>(losses.size()); at += step) {
    for (int64_t token = std::max<int64_t>(first, 1); token < end; ++token) {
      bucket.push_back(losses[static_cast<size_t>(at + token - 1)]);
    }
  }
  return bucket;
}

}  // namespace

double MeanLoss(const std::vector<double>& losses) {
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  return losses.empty() ? 0 : sum / static_cast<double>(losses.size());
}

nlohmann::ordered_json LossDifference(const std::vector<double>& losses,
                                      const std::vector<double>& off) {
  double sum = 0, largest = 0;
  for (size_t i = 0; i < off.size(); ++i) {
    sum += losses[i] - off[i];
    largest = std::max(largest, std::abs(losses[i] - off[i]));
  }
  return {{"mean", sum / static_cast<double>(std::max<size_t>(off.size(), 1))},
          {"largest", largest}};
}

nlohmann::ordered_json AcpLoss::Json() const {
  nlohmann::ordered_json json = {
      {"window", window},
      {"tokens", off.size()},
      {"nll",
       {{"off", MeanLoss(off)}, {"paper", MeanLoss(paper)}, {"certified", MeanLoss(certified)}}},
      {"difference",
       {{"paper", LossDifference(paper, off)},
        {"certified", LossDifference(certified, off)},
        {"rounding", LossDifference(rounding, off)}}}};
  auto& buckets = json["by_position"] = nlohmann::ordered_json::array();
  const int64_t width = std::max<int64_t>((window + kBuckets - 1) / kBuckets, 2);
  for (int64_t first = 0; first < window && !off.empty(); first += width) {
    const int64_t end = std::min(first + width, window);
    if (end - std::max<int64_t>(first, 1) < 1) continue;
    nlohmann::ordered_json bucket = {{"first", first}, {"end", end}};
    for (const auto& [name, losses] :
         {std::pair{"off", &off}, {"paper", &paper}, {"certified", &certified}}) {
      bucket[name] = MeanLoss(Bucket(*losses, window, first, end));
    }
    buckets.push_back(std::move(bucket));
  }
  return json;
}

}  // namespace fox
