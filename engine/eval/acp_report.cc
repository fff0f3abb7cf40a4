// AcpReport: the table of heads as text, and everything as JSON.
#include "engine/eval/acp_report.h"

#include <array>

#include "absl/strings/str_format.h"

namespace fox {
namespace {

// Null when there is nothing to divide.
nlohmann::ordered_json Ratio(int64_t part, int64_t whole) {
  if (whole == 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

nlohmann::ordered_json HeadJson(const HeadTrace& head) {
  return {{"mean_window", head.MeanWindow()},
          {"pruned_share", head.PrunedShare()},
          {"kept_pages", head.KeptPages()},
          {"first_live", head.first_live}};
}

nlohmann::ordered_json TraceJson(const AcpTrace& trace, const AcpTrace& off) {
  return {{"blocks_total", trace.stats.blocks_total},
          {"blocks_pruned", trace.stats.blocks_pruned},
          {"skipped_share", trace.PrunedPairs()},
          {"pages_written", trace.stats.pages_allocated},
          {"pages_evicted", trace.stats.pages_evicted},
          {"evicted_share", trace.EvictedPages()},
          {"max_log_evicted_mass", trace.stats.max_log_evicted_mass},  // nothing evicted: null
          {"nll", MeanLoss(trace.losses)},
          {"nll_difference", LossDifference(trace.losses, off.losses)}};
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
  int64_t forgetting_heads = 0;
  std::array<int64_t, 2> kept{}, paper_kept{};  // of all heads, of heads that forget
  for (size_t i = 0; i < paper.heads.size(); ++i) {
    if (Forgets(i)) ++forgetting_heads;
    for (size_t only = 0; only < (Forgets(i) ? 2U : 1U); ++only) {
      kept[only] += certified.heads[i].KeptPages();
      paper_kept[only] += paper.heads[i].KeptPages();
    }
  }
  nlohmann::ordered_json json = {{"model", model},
                                 {"dtype", dtype},
                                 {"quantization", quantization},
                                 {"tokens", tokens()},
                                 {"log_tolerance", log_tolerance},
                                 {"page_tokens", kPageTokens},
                                 {"heads_that_forget", forgetting_heads},
                                 {"off", TraceJson(off, off)},
                                 {"paper", TraceJson(paper, off)},
                                 {"certified", TraceJson(certified, off)}};
  json["certified_over_paper"] = {{"kept_pages", Ratio(kept[0], paper_kept[0])},
                                  {"kept_pages_forgetting", Ratio(kept[1], paper_kept[1])}};
  json["loss"] = loss.Json();
  auto& points = json["sweep"] = nlohmann::ordered_json::array();
  for (const SweepPoint& point : sweep) {
    points.push_back({{"log_tolerance", point.log_tolerance},
                      {"paper", TraceJson(point.paper, off)},
                      {"certified", TraceJson(point.certified, off)}});
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
