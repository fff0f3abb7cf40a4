// Runs fox-bench on a tiny model and checks that its rows are complete; speed is not checked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/engine/eval/run_program.h"

namespace fox {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kTiny = std::string(FOX_SOURCE_DIR) + "/tests/golden/tiny_rope";

// Runs fox-bench with --json and returns the report. `command_line`: a command and its flags.
json ReportOf(const std::string& command_line) {
  std::vector<std::string> arguments = absl::StrSplit(command_line, ' ', absl::SkipWhitespace());
  arguments.insert(arguments.begin() + 1, {"--json", TempPath("rows.json")});
  const Ran ran = RunProgram("fox-bench", arguments);
  EXPECT_EQ(ran.status, 0) << ran.out << ran.err;
  return json::parse(ReadWhole(TempPath("rows.json")));
}

TEST(FoxBenchTest, EveryLoadFindsWhatItSharesInTheCache) {
  const json report = ReportOf(
      "cache --device cpu --document 256 --question 20 --answer 4 --requests 2 --rounds 1");
  ASSERT_EQ(report["rows"].size(), 4U);
  for (const json& row : report["rows"]) {
    SCOPED_TRACE(row);
    EXPECT_GT(row["tokens_per_second"]["median"], 0);
    EXPECT_GT(row["first_token_seconds"]["median"], 0);
    EXPECT_EQ(row["found"] > 0, row["cache"] == true && row["load"] == "questions");
  }
}

TEST(FoxBenchTest, AnswersDoNotDependOnWhatRunsBesideThem) {
  const json report = ReportOf(
      "invariance --device cpu --acp off --threads 1 --requests 12 --shortest 30 --longest 200 "
      "--max-tokens 150 --model " +
      kTiny);
  ASSERT_EQ(report["rows"].size(), 8U);
  for (const json& row : report["rows"]) {
    SCOPED_TRACE(row);
    const std::string way = row["way"];
    EXPECT_EQ(row["requests"], 12);
    EXPECT_EQ(row["bits_differ"], 0);
    EXPECT_EQ(row["preemptions"] > 0, way == "small pool");
    EXPECT_EQ(row["cached_tokens"] > 0, way.starts_with("from the prefix cache"));
  }
}

TEST(FoxBenchTest, TwoServersUnderTheSameArrivals) {
  const json report = ReportOf(
      "serve --compare off,certified --device cpu --rates 100 --requests 6 --prompt-tokens 300-400 "
      "--output-tokens 40 --model " +
      kTiny + " -- --kv-cache-mb 1 --threads 1");
  ASSERT_EQ(report["rows"].size(), 2U);
  for (const json& row : report["rows"]) {
    SCOPED_TRACE(row);
    EXPECT_EQ(row["acp"], &row == &report["rows"][0] ? "off" : "certified");
    EXPECT_EQ(row["completed"], 6);
    for (const char* none : {"refused", "lost", "missing_tokens", "repeated_tokens"}) {
      EXPECT_EQ(row[none], 0) << none;
    }
    EXPECT_DOUBLE_EQ(row["output_tokens_per_second"].get<double>() * row["seconds"].get<double>(),
                     6 * 40);
    EXPECT_GE(row["most_kept"], 1);
    EXPECT_LE(row["most_kept"], 6);
    EXPECT_GT(row["most_kept_bytes"], 0);
    EXPECT_GT(row["inter_token_latency"]["p50"], 0);
  }
}

TEST(FoxBenchTest, PromptsArePartsOfAText) {
  const std::string text = std::string(FOX_SOURCE_DIR) + "/models/demo/prompt_long.txt";
  const json report = ReportOf(
      "serve --compare certified --device cpu --rates 100 --requests 2 --prompt-tokens 80 "
      "--output-tokens 4 --text " +
      text);
  EXPECT_EQ(report["rows"].at(0)["completed"], 2);
  const Ran refused = RunProgram("fox-bench", {"serve", "--compare", "off", "--text", "absent"});
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err, HasSubstr("absent"));
}

TEST(FoxBenchTest, AllOnATinyModel) {
  const json report = ReportOf(
      "all --lengths 64,130 --batch-sizes 1,2 --contexts 64,200 --repeat 1 --buffer-mib 8 "
      "--matmul-size 64 --dtype f32 --chunk 64 --model " +
      kTiny);
  EXPECT_GT(report["read_bytes_per_second"]["median"], 0);
  EXPECT_GT(report["flops_per_second"]["median"], 0);
  std::map<std::string, int> rows;
  std::map<std::string, double> live;  // share of KV pages behind the longest prompt
  for (const json& row : report["rows"]) {
    SCOPED_TRACE(row);
    ++rows[row["bench"]];
    EXPECT_GT(row["seconds"]["median"], 0);
    EXPECT_LE(row["seconds"]["min"], row["seconds"]["max"]);
    EXPECT_GT(row["floor_seconds"], 0);
    if (row["bench"] == "decode") {
      EXPECT_GT(row["page_bytes_read"], 0);
      if (row["acp"] != "off") continue;
      const int pages = row["context"] == 64 ? 2 : 4;  // of each of 4 lists
      EXPECT_EQ(row["live_pages"], 4 * pages * row["batch_size"].get<int>());
      continue;
    }
    live[row["acp"]] = row["live_bytes"].get<double>() / row["unpruned_bytes"].get<double>();
  }
  // Three bounds times the lengths, contexts and batch sizes.
  EXPECT_EQ(rows, (std::map<std::string, int>{{"prefill", 6}, {"decode", 12}}));
  EXPECT_EQ(live["off"], 1);
  EXPECT_LE(live["certified"], live["paper"]);
  EXPECT_LE(live["paper"], 1);
}

TEST(FoxBenchTest, DecodesBesideAPrompt) {
  const json report = ReportOf(
      "decode --prompt-rows 100 --batch-sizes 1,2 --contexts 64 --modes off,certified --repeat 1 "
      "--buffer-mib 8 --matmul-size 64 --dtype f32 --chunk 64 --model " +
      kTiny);
  ASSERT_EQ(report["rows"].size(), 4U);
  for (const json& row : report["rows"]) {
    SCOPED_TRACE(row);
    EXPECT_EQ(row["prompt_rows"], 100);
    EXPECT_GT(row["seconds"]["median"], 0);
    if (row["acp"] != "off") continue;
    EXPECT_EQ(row["live_pages"], 4 * 2 * row["batch_size"].get<int>());  // the prompt's not counted
  }
}

TEST(FoxBenchTest, MakesAModelThatLoads) {
  const std::string dir = TempPath("model");
  int64_t unpruned[2];
  for (const int kv_heads : {8, 4}) {
    SCOPED_TRACE(kv_heads);
    const Ran made = RunProgram(
        "fox-bench", {"make-model", "--out", dir, "--layers", "2", "--heads", "8", "--kv-heads",
                      std::to_string(kv_heads), "--hidden-size", "128", "--vocab-size", "300"});
    ASSERT_EQ(made.status, 0) << made.err;
    const json report = ReportOf(
        "prefill --lengths 640 --repeat 1 --buffer-mib 8 --matmul-size 64 --dtype f32 --model " +
        dir);
    ASSERT_EQ(report["rows"].size(), 3U);
    // Three heads of four forget: under a bound they keep a small part of ten pages.
    EXPECT_EQ(report["rows"][0]["live_bytes"], report["rows"][0]["unpruned_bytes"]);
    EXPECT_LT(report["rows"][2]["live_bytes"], report["rows"][0]["live_bytes"]);
    unpruned[kv_heads == 4] = report["rows"][0]["unpruned_bytes"];
  }
  EXPECT_LT(unpruned[1], unpruned[0]);
}

TEST(FoxBenchTest, MisuseIsAnErrorOfOneLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"decode --model=", "--model is required"},
      {"prefill --model /nonexistent", ""},
      {"prefill --text /nonexistent.txt --model " + kTiny, "/nonexistent.txt"},
      {"attention --device cpu --buffer-mib 1 --matmul-size 64 --model " + kTiny, "CUDA"},
      {"serve --target 127.0.0.1:1", "127.0.0.1:1"},
      {"serve --compare off --model " + kTiny + " -- --thread 1", "--threads"}};
  for (const auto& [command_line, said] : cases) {
    const Ran ran = RunProgram("fox-bench", absl::StrSplit(command_line, ' '));
    EXPECT_EQ(ran.status, 78) << said;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(said));
  }
  EXPECT_EQ(RunProgram("fox-bench", {"decod"}).status, 2);
}

}  // namespace
}  // namespace fox
