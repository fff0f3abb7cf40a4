// The largest demand is just before one of the sequences ends. See page_demand.h.
#include "engine/schedule/page_demand.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fox {
namespace {

// Of what sequences will keep together, as if they did not depend on each other: more is wanted in
// 2 of 100 cases, if the sum is normally distributed.
constexpr double kDeviations = 2;

bool EndsLater(const PageDemand::Of& a, const PageDemand::Of& b) {
  return a.tokens_left > b.tokens_left;
}

}  // namespace

PageDemand::PageDemand(std::vector<Of> sequences) : sequences_(std::move(sequences)) {
  std::sort(sequences_.begin(), sequences_.end(), EndsLater);
  for (const Of& sequence : sequences_) {
    held_ += sequence.held;
    most_ += sequence.most;
  }
}

void PageDemand::Add(const Of& sequence) {
  sequences_.insert(std::upper_bound(sequences_.begin(), sequences_.end(), sequence, EndsLater),
                    sequence);
  held_ += sequence.held;
  most_ += sequence.most;
}

int64_t PageDemand::With(const Of& next, int64_t given) const {
  double expected = 0, variance = 0, per_token = 0, growth = 0, demand = 0;
  auto ended = static_cast<double>(held_ + next.held);  // by those that are not yet in the sums
  const auto until_end_of = [&](const Of& sequence) {
    expected += sequence.expected;
    variance += sequence.deviation * sequence.deviation;
    per_token += sequence.per_token;
    ended -= static_cast<double>(sequence.held);
    const double tokens = std::max(0.0, sequence.tokens_left - static_cast<double>(given));
    growth = std::max(growth, per_token * tokens);
    demand =
        std::max(demand, expected + per_token * tokens + kDeviations * std::sqrt(variance) - ended);
  };
  const auto place = std::upper_bound(sequences_.begin(), sequences_.end(), next, EndsLater);
  std::for_each(sequences_.begin(), place, until_end_of);
  until_end_of(next);
  std::for_each(place, sequences_.end(), until_end_of);
  const auto most = static_cast<double>(most_ + next.most);
  return static_cast<int64_t>(std::ceil(std::min(demand, most + growth)));
}

}  // namespace fox
