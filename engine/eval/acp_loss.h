// AcpLoss: the cost of pruning in loss. The losses of the same tokens without pruning, under either
// bound, and once more without pruning but with the sums of matrix products taken in another order,
// which shows how much of a difference is rounding.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace fox {

// Mean loss of the tokens; 0 without tokens.
double MeanLoss(const std::vector<double>& losses);
// Mean of losses[i] - off[i], and the largest absolute value.
nlohmann::ordered_json LossDifference(const std::vector<double>& losses,
                                      const std::vector<double>& off);

struct AcpLoss {
  int64_t window = 0;  // tokens; each starts from an empty context, so its first one has no loss
  // In nats, window - 1 for each window, one window after another.
  std::vector<double> off, paper, certified, rounding;

  nlohmann::ordered_json Json() const;  // means and differences, overall and by position
};

}  // namespace fox
