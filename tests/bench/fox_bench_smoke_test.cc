// fox-bench runs to its end on a tiny model, and its rows are whole. Says nothing about speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/engine/eval/run_program.h"

namespace fox {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTiny = std::string(FOX_SOURCE_DIR) + "/tests/golden/tiny_rope";

TEST(FoxBenchTest, EveryDoorLetsItsStreamsThrough) {
  const Ran ran = RunProgram("fox-bench", {"doors", "--device", "cpu", "--streams", "2", "--tokens",
                                           "8", "--rounds", "1", "--json", TempPath("rows.json")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  std::vector<std::string> ways;
  for (const json& row : report["rows"]) {
    ways.push_back(row["way"]);
    EXPECT_GT(row["seconds"]["median"], 0);
  }
  EXPECT_THAT(ways, ElementsAre("engine", "fox.v1", "http"));
}

TEST(FoxBenchTest, EveryLoadFindsWhatItSharesInTheCache) {
  const Ran ran =
      RunProgram("fox-bench", {"cache", "--device", "cpu", "--document", "256", "--question", "20",
                               "--answer", "4", "--requests", "2", "--turns", "2", "--rounds", "1",
                               "--json", TempPath("rows.json")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  std::vector<std::string> loads;
  for (const json& row : report["rows"]) {
    loads.push_back(row["load"]);
    EXPECT_GT(row["tokens_per_second"]["median"], 0);
    const bool finds = row["cache"] == true && row["load"] != "strangers";
    EXPECT_EQ(row["found"] > 0, finds) << row;
  }
  EXPECT_THAT(loads,
              ElementsAre("questions", "questions", "turns", "turns", "strangers", "strangers"));
}

TEST(FoxBenchTest, AnswersDoNotDependOnWhatRunsBesideThem) {
  const Ran ran = RunProgram("fox-bench", {"invariance",   "--model",   kTiny,
                                           "--device",     "cpu",       "--acp",
                                           "off",          "--threads", "1",
                                           "--requests",   "12",        "--shortest",
                                           "30",           "--longest", "200",
                                           "--max-tokens", "150",       "--swap-space-mb",
                                           "16",           "--json",    TempPath("rows.json")});
  ASSERT_EQ(ran.status, 0) << ran.out << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  ASSERT_EQ(report["rows"].size(), 8U);
  for (const json& row : report["rows"]) {
    const std::string way = row["way"];
    EXPECT_EQ(row["requests"], 12);
    EXPECT_EQ(row["tokens_differ"], 0) << way;
    EXPECT_EQ(row["bits_differ"], 0) << way;
    EXPECT_EQ(row["preemptions"] > 0, way.find("small pool") == 0) << row;
    EXPECT_EQ(row["swaps"] > 0, way == "small pool, swapped") << row;
    EXPECT_EQ(row["cached_tokens"] > 0, way == "from the prefix cache") << row;
  }
}

TEST(FoxBenchTest, AFurtherSnapshotCostsItsOwnPagesAlone) {
  const Ran ran = RunProgram("fox-bench", {"snapshots", "--document", "512", "--behind", "64,512",
                                           "--json", TempPath("rows.json")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  ASSERT_EQ(report["rows"].size(), 2U);
  for (const json& row : report["rows"]) {
    EXPECT_LT(row["sole_pages"], row["pages"]);
    EXPECT_LT(row["pages"], 60 * 8);  // lists of the demo model, pages
    const double page_bytes = row["unpruned_bytes"].get<double>() / (60 * 8);
    EXPECT_DOUBLE_EQ(row["bytes"], row["sole_pages"].get<double>() * page_bytes +
                                       row["state_bytes"].get<double>());
  }
  EXPECT_LE(report["rows"][0]["sole_pages"], report["rows"][1]["sole_pages"]);
}

TEST(FoxBenchTest, AnotherSaltFindsNothing) {
  const Ran ran = RunProgram("fox-bench", {"salts", "--device", "cpu", "--prompt", "150",
                                           "--rounds", "6", "--json", TempPath("rows.json")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  ASSERT_EQ(report["rows"].size(), 2U);
  for (const json& row : report["rows"]) {
    EXPECT_EQ(row["found_tokens"], 0);
    EXPECT_EQ(row["rounds"], 6);
    EXPECT_GT(row["other_seconds"]["min"], 0);
    EXPECT_GT(row["p"], 0);
    EXPECT_LE(row["p"], 1);
  }
}

TEST(FoxBenchTest, TwoServersUnderTheSameArrivals) {
  const Ran ran = RunProgram("fox-bench", {"serve",
                                           "--compare",
                                           "off,certified",
                                           "--model",
                                           kTiny,
                                           "--device",
                                           "cpu",
                                           "--rates",
                                           "100",
                                           "--requests",
                                           "6",
                                           "--prompt-tokens",
                                           "300-400",
                                           "--output-tokens",
                                           "40",
                                           "--json",
                                           TempPath("rows.json"),
                                           "--",
                                           "--kv-cache-mb",
                                           "1",
                                           "--threads",
                                           "1"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  ASSERT_EQ(report["rows"].size(), 3U);
  for (const int i : {0, 1}) {
    const json& row = report["rows"][static_cast<size_t>(i)];
    EXPECT_EQ(row["acp"], i == 0 ? "off" : "certified");
    EXPECT_EQ(row["completed"], 6);
    for (const char* none : {"refused", "lost", "missing_tokens", "repeated_tokens"}) {
      EXPECT_EQ(row[none], 0) << none;
    }
    EXPECT_GT(row["output_tokens_per_second"], 0);
    EXPECT_GE(row["engine"]["prefill_steps"], 1);
    EXPECT_GT(row["engine"]["decode_seconds"], 0);
    EXPECT_LE(row["engine"]["decode_seconds"], row["seconds"]);
    EXPECT_GE(row["most_kept"], 1);
    EXPECT_LE(row["most_kept"], 6);
    EXPECT_GT(row["num_pages"], 0);
  }
  const json& ratios = report["rows"][2];
  EXPECT_EQ(ratios["bench"], "serve_compare");
  EXPECT_DOUBLE_EQ(ratios["output_tokens_per_second"],
                   report["rows"][1]["output_tokens_per_second"].get<double>() /
                       report["rows"][0]["output_tokens_per_second"].get<double>());
}

TEST(FoxBenchTest, AllOnATinyModel) {
  const Ran ran = RunProgram("fox-bench", {"all",
                                           "--model",
                                           kTiny,
                                           "--lengths",
                                           "64,130",
                                           "--batch-sizes",
                                           "1,2",
                                           "--contexts",
                                           "64,200",
                                           "--repeat",
                                           "1",
                                           "--buffer-mib",
                                           "8",
                                           "--matmul-size",
                                           "64",
                                           "--dtype",
                                           "f32",
                                           "--chunk",
                                           "64",
                                           "--json",
                                           TempPath("rows.json")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  EXPECT_GT(report["read_bytes_per_second"]["median"], 0);
  EXPECT_GT(report["flops_per_second"]["median"], 0);
  std::map<std::string, int> rows;
  std::map<std::string, int64_t> live;  // KV pages at the longest context
  for (const json& row : report["rows"]) {
    ++rows[row["bench"]];
    if (row["bench"] == "memory") live[row["acp"]] = row["live_pages"];
    if (row["bench"] == "memory") continue;
    EXPECT_GT(row["seconds"]["median"], 0);
    EXPECT_LE(row["seconds"]["min"], row["seconds"]["max"]);
    EXPECT_GT(row["floor_seconds"], 0);
    if (row["bench"] == "linear") continue;
    double share = 0;  // the operations lie within the measured time
    for (const json& part : row["shares"]) share += part.get<double>();
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 1);
  }
  // Three bounds times the lengths, contexts and batch sizes; five layers times three row counts.
  EXPECT_EQ(rows, (std::map<std::string, int>{
                      {"prefill", 6}, {"decode", 12}, {"linear", 15}, {"memory", 6}}));
  EXPECT_EQ(live["off"], 16);  // 4 lists of 4 pages
  EXPECT_LE(live["certified"], live["paper"]);
  EXPECT_LE(live["paper"], live["off"]);
}

TEST(FoxBenchTest, SwapsSequencesOfEveryBound) {
  const Ran ran =
      RunProgram("fox-bench",
                 {"swap", "--model", kTiny, "--contexts", "64,200", "--repeat", "1", "--buffer-mib",
                  "8", "--matmul-size", "64", "--dtype", "f32", "--json", TempPath("rows.json")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  ASSERT_EQ(report["rows"].size(), 6U);
  for (const json& row : report["rows"]) {
    EXPECT_GT(row["pages"], 0);
    EXPECT_GT(row["out_seconds"]["median"], 0);
    EXPECT_GT(row["in_seconds"]["median"], 0);
    EXPECT_GT(row["speedup_over_prefill"], 0);
  }
}

TEST(FoxBenchTest, MakesAModelThatLoads) {
  const std::string dir = TempPath("model");
  const Ran made = RunProgram("fox-bench", {"make-model", "--out", dir, "--layers", "2", "--heads",
                                            "8", "--hidden-size", "128", "--vocab-size", "300"});
  ASSERT_EQ(made.status, 0) << made.err;
  const Ran ran = RunProgram(
      "fox-bench", {"prefill", "--model", dir, "--lengths", "640", "--repeat", "1", "--buffer-mib",
                    "8", "--matmul-size", "64", "--dtype", "f32", "--json", TempPath("rows.json")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json report = json::parse(ReadWhole(TempPath("rows.json")));
  ASSERT_EQ(report["rows"].size(), 3U);
  // Three heads of four forget: under a bound they keep a small part of ten pages.
  EXPECT_EQ(report["rows"][0]["live_bytes"], report["rows"][0]["unpruned_bytes"]);
  EXPECT_LT(report["rows"][2]["live_bytes"], report["rows"][0]["live_bytes"]);
}

TEST(FoxBenchTest, MisuseIsToldInOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"decode", "--model="}, "--model is required"},
      {{"--lengths=0"}, "--lengths"},
      {{"decode", "--model", kTiny, "--batch-size", "1"}, "--batch-sizes"},
      {{"decode", "--model", kTiny, "--contexts", "12,x"}, "--contexts"},
      {{"decode", "--model", kTiny, "--modes", "of"}, "--modes"},
      {{"prefill", "--model", "/nonexistent"}, ""},
      {{"prefill", "--model", kTiny, "--text", "/nonexistent.txt"}, "/nonexistent.txt"},
      {{"attention", "--model", kTiny, "--device", "cpu", "--buffer-mib", "1", "--matmul-size",
        "64"},
       "CUDA"},
      {{"make-model"}, "--out is required"},
      {{"invariance", "--shortest", "9", "--longest", "8"}, "--longest"},
      {{"serve", "--rates", "1,0"}, "--rates"},
      {{"serve", "--prompt-tokens", "9-8"}, "--prompt-tokens"},
      {{"serve", "--target", "127.0.0.1:1"}, "127.0.0.1:1"},
      {{"serve", "--compare", "off,of"}, "--compare"},
      {{"serve", "--", "--threads", "1"}, "--compare"},
      {{"serve", "--compare", "off", "--model", kTiny, "--", "--thread", "1"}, "--threads"}};
  for (const auto& [arguments, said] : cases) {
    const Ran ran = RunProgram("fox-bench", arguments);
    EXPECT_EQ(ran.status, 78) << said;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(said));
  }
  EXPECT_EQ(RunProgram("fox-bench", {"decod"}).status, 2);
}

}  // namespace
}  // namespace fox
