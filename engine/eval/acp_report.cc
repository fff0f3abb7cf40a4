// AcpReport: the table of heads as text, and everything as JSON.
#include "engine/eval/acp_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "absl/strings/str_format.h"

namespace fox {
namespace {

// Certified over paper; empty when there is nothing to divide.
struct KeptRatios {
  std::optional<double> all, forgetting;                // pages summed over page ends
  std::optional<double> all_at_end, forgetting_at_end;  // pages at the last page end
  int64_t forgetting_heads = 0;
  double paper_window = 0, certified_window = 0;  // mean over heads that forget
};

std::optional<double> Ratio(int64_t part, int64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

KeptRatios RatiosOf(const AcpReport& report) {
  // [certified, paper] x [all, forgetting]
  std::array<std::array<int64_t, 2>, 2> kept{}, end{};
  KeptRatios ratios;
  for (size_t i = 0; i < report.paper.heads.size(); ++i) {
    const std::array<const HeadTrace*, 2> traces = {&report.certified.heads[i],
                                                    &report.paper.heads[i]};
    const bool forgets = report.Forgets(i);
    for (size_t mode = 0; mode < 2; ++mode) {
      kept[mode][0] += traces[mode]->KeptPages();
      end[mode][0] += traces[mode]->KeptAtEnd();
      if (!forgets) continue;
      kept[mode][1] += traces[mode]->KeptPages();
      end[mode][1] += traces[mode]->KeptAtEnd();
    }
    if (!forgets) continue;
    ++ratios.forgetting_heads;
    ratios.certified_window += traces[0]->MeanWindow();
    ratios.paper_window += traces[1]->MeanWindow();
  }
  const auto heads = static_cast<double>(std::max<int64_t>(ratios.forgetting_heads, 1));
  ratios.certified_window /= heads;
  ratios.paper_window /= heads;
  ratios.all = Ratio(kept[0][0], kept[1][0]);
  ratios.forgetting = Ratio(kept[0][1], kept[1][1]);
  ratios.all_at_end = Ratio(end[0][0], end[1][0]);
  ratios.forgetting_at_end = Ratio(end[0][1], end[1][1]);
  return ratios;
}

nlohmann::ordered_json JsonNumber(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json HeadJson(const HeadTrace& head) {
  return {{"mean_window", head.MeanWindow()},
          {"pruned_share", head.PrunedShare()},
          {"kept_pages", head.KeptPages()},
          {"kept_pages_at_end", head.KeptAtEnd()},
          {"first_live", head.first_live}};
}

nlohmann::ordered_json TraceJson(const AcpTrace& trace) {
  return {{"blocks_total", trace.stats.blocks_total},
          {"blocks_pruned", trace.stats.blocks_pruned},
          {"skipped_share", trace.PrunedPairs()},
          {"pages_written", trace.stats.pages_allocated},
          {"pages_evicted", trace.stats.pages_evicted},
          {"evicted_share", trace.EvictedPages()},
          {"max_log_evicted_mass", trace.stats.max_log_evicted_mass},  // nothing evicted: null
          {"nll", trace.MeanLoss()}};
}

// Largest difference of one token's loss.
double LargestChange(const AcpTrace& trace, const AcpTrace& off) {
  double largest = 0;
  for (size_t i = 0; i < off.losses.size(); ++i) {
    largest = std::max(largest, std::abs(trace.losses[i] - off.losses[i]));
  }
  return largest;
}

nlohmann::ordered_json SweepJson(const AcpTrace& trace, const AcpTrace& off) {
  return {{"skipped_share", trace.PrunedPairs()},
          {"evicted_share", trace.EvictedPages()},
          {"max_log_evicted_mass", trace.stats.max_log_evicted_mass},
          {"nll", trace.MeanLoss()},
          {"nll_difference", trace.MeanLoss() - off.MeanLoss()},
          {"largest_difference", LargestChange(trace, off)}};
}

}  // namespace

int64_t AcpReport::tokens() const {
  return paper.heads.empty() ? 0 : paper.heads[0].pages() * kPageTokens;
}

std::string AcpReport::Table() const {
  std::string text =
      "                    mean window, tokens      pruned share\n"
      "  layer head        paper    certified     paper  certified   ratio of windows\n";
  for (size_t i = 0; i < paper.heads.size(); ++i) {
    const HeadTrace& p = paper.heads[i];
    const HeadTrace& c = certified.heads[i];
    absl::StrAppendFormat(&text, "  %5d %4d %12.1f %12.1f %9.4f %10.4f %8.3f%s\n", p.layer, p.head,
                          p.MeanWindow(), c.MeanWindow(), p.PrunedShare(), c.PrunedShare(),
                          p.MeanWindow() > 0 ? c.MeanWindow() / p.MeanWindow() : 1.0,
                          Forgets(i) ? "" : "  global");
  }
  return text;
}

nlohmann::ordered_json AcpReport::Json() const {
  const KeptRatios ratios = RatiosOf(*this);
  nlohmann::ordered_json json = {{"model", model},
                                 {"dtype", dtype},
                                 {"quantization", quantization},
                                 {"tokens", tokens()},
                                 {"log_tolerance", log_tolerance},
                                 {"page_tokens", kPageTokens},
                                 {"heads_that_forget", ratios.forgetting_heads},
                                 {"off", TraceJson(off)},
                                 {"paper", TraceJson(paper)},
                                 {"certified", TraceJson(certified)}};
  json["certified_over_paper"] = {{"kept_pages", JsonNumber(ratios.all)},
                                  {"kept_pages_forgetting", JsonNumber(ratios.forgetting)},
                                  {"at_end", JsonNumber(ratios.all_at_end)},
                                  {"at_end_forgetting", JsonNumber(ratios.forgetting_at_end)}};
  json["mean_window_forgetting"] = {{"paper", ratios.paper_window},
                                    {"certified", ratios.certified_window}};
  json["loss"] = loss.Json();
  auto& points = json["sweep"] = nlohmann::ordered_json::array();
  for (const SweepPoint& point : sweep) {
    points.push_back({{"log_tolerance", point.log_tolerance},
                      {"paper", SweepJson(point.paper, off)},
                      {"certified", SweepJson(point.certified, off)}});
  }
  auto& heads = json["heads"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < paper.heads.size(); ++i) {
    heads.push_back({{"layer", paper.heads[i].layer},
                     {"head", paper.heads[i].head},
                     {"forgets", Forgets(i)},
                     {"paper", HeadJson(paper.heads[i])},
                     {"certified", HeadJson(certified.heads[i])}});
  }
  return json;
}

}  // namespace fox
