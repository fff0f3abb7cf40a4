// fox-eval as a program: its answers against the reference's, its commands against one another, and
// one line for every way to misuse it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "models/checkpoint/safetensors.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/engine/eval/run_program.h"

namespace fox {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kDemo = std::string(FOX_SOURCE_DIR) + "/models/demo";

std::string Golden(const std::string& name) {
  return std::string(FOX_SOURCE_DIR) + "/tests/golden/" + name;
}

Ran FoxEval(const std::vector<std::string>& arguments) { return RunProgram("fox-eval", arguments); }

// The tensor `name` of a safetensors file, as float64.
std::vector<double> ReadTensor(const std::string& path, const std::string& name) {
  const std::string file = ReadWhole(path);
  const auto parsed = ParseSafetensors(std::as_bytes(std::span(file)), path);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok() || parsed->count(name) == 0) return {};
  const SafetensorsEntry& entry = parsed->at(name);
  std::vector<double> values;
  if (entry.dtype_name == "F64") {
    values.resize(entry.data.size() / sizeof(double));
    std::memcpy(values.data(), entry.data.data(), entry.data.size());
  } else {
    EXPECT_EQ(entry.dtype_name, "F32");
    std::vector<float> floats(entry.data.size() / sizeof(float));
    std::memcpy(floats.data(), entry.data.data(), entry.data.size());
    values.assign(floats.begin(), floats.end());
  }
  return values;
}

// Logits that fox-eval writes for `ids`, one after another.
std::vector<double> Logits(const std::string& model, const json& ids,
                           std::vector<std::string> flags) {
  WriteWhole(TempPath("ids.json"), ids.dump());
  flags.insert(flags.begin(), {"logits", "--model", model, "--ids", TempPath("ids.json"), "--out",
                               TempPath("logits.safetensors")});
  const Ran ran = FoxEval(flags);
  EXPECT_EQ(ran.status, 0) << ran.err;
  return ReadTensor(TempPath("logits.safetensors"), "logits");
}

TEST(FoxEvalTest, LogitsEqualTheReference) {
  const json expected = json::parse(ReadWhole(Golden("tiny_rope") + "/expected.json"));
  const auto wanted = ReadTensor(Golden("tiny_rope") + "/expected.safetensors", "logits");
  ASSERT_FALSE(wanted.empty());
  // Prefill in odd chunks, then the last positions one by one.
  const auto got =
      Logits(Golden("tiny_rope"), expected["input_ids"],
             {"--dtype", "f64", "--acp", "off", "--chunk", "37", "--decode-from", "100"});
  ASSERT_GE(got.size(), wanted.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    difference = std::max(difference, std::abs(wanted[i] - got[got.size() - wanted.size() + i]));
  }
  // Some hundred roundings of 2^-53 in a row, a few layers deep.
  EXPECT_LE(difference, 1e-12 * largest);
}

TEST(FoxEvalTest, GreedyEqualsTheReference) {
  const json expected = json::parse(ReadWhole(Golden("dev_pro_d64") + "/expected.json"));
  WriteWhole(TempPath("ids.json"), expected["input_ids"].dump());
  const size_t count = expected["greedy"].size();
  for (const char* acp : {"off", "certified"}) {
    SCOPED_TRACE(acp);
    const Ran ran =
        FoxEval({"greedy", "--model", Golden("dev_pro_d64"), "--ids", TempPath("ids.json"),
                 "--dtype", "f32", "--acp", acp, "--new", std::to_string(count)});
    ASSERT_EQ(ran.status, 0) << ran.err;
    const json got = json::parse(ran.out);
    ASSERT_EQ(got.size(), count);
    for (size_t i = 0; i < count; ++i) {
      if (expected["greedy_gaps"][i].get<double>() <= 1e-3) break;  // a tie may go either way
      ASSERT_EQ(got[i], expected["greedy"][i]) << acp << ", token " << i;
    }
  }
}

class PerplexityTest : public ::testing::Test {
 protected:
  PerplexityTest() {
    const std::string prompt = ReadWhole(kDemo + "/prompt_long.txt");
    first_ = prompt.substr(0, 1500);
    second_ = prompt.substr(4000, 900);
    WriteWhole(TempPath("text"), first_ + std::string("\n\0\n", 3) + second_);
  }
  json Perplexity(std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {"perplexity", "--model", kDemo, "--text", TempPath("text"), "--dtype", "f32"});
    const Ran ran = FoxEval(flags);
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << ran.out;
    return json::parse(ran.out);
  }
  // bos document eos bos document eos.
  std::vector<int32_t> Ids() const {
    const auto tokenizer = LoadTokenizer(kDemo, 8192);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::vector<int32_t> ids;
    for (const std::string& document : {first_, second_}) {
      const auto encoded = (*tokenizer)->Encode(document, false);
      EXPECT_TRUE(encoded.ok()) << encoded.status();
      ids.push_back(1);
      ids.insert(ids.end(), encoded->begin(), encoded->end());
      ids.push_back(2);
    }
    return ids;
  }
  std::string first_, second_;
};

TEST_F(PerplexityTest, IsTheMeanLossOfItsWindows) {
  constexpr size_t kWindow = 300;
  const std::vector<int32_t> ids = Ids();
  ASSERT_GT(ids.size(), 2 * kWindow - 100);
  ASSERT_NE(ids.size() % kWindow, 1u);
  double nats = 0;
  size_t tokens = 0, windows = 0;
  for (size_t begin = 0; begin < ids.size(); begin += kWindow, ++windows) {
    SCOPED_TRACE(begin);
    const std::vector<int32_t> window(
        ids.begin() + static_cast<ptrdiff_t>(begin),
        ids.begin() + static_cast<ptrdiff_t>(std::min(begin + kWindow, ids.size())));
    const auto logits = Logits(kDemo, window, {"--dtype", "f32", "--acp", "off"});
    ASSERT_EQ(logits.size(), window.size() * 8192);
    for (size_t i = 0; i + 1 < window.size(); ++i, ++tokens) {
      const double* row = logits.data() + i * 8192;
      double sum = 0;
      for (size_t j = 0; j < 8192; ++j) sum += std::exp(row[j]);
      nats += std::log(sum) - row[window[i + 1]];
    }
  }
  const json got = Perplexity({"--acp", "off", "--window", std::to_string(kWindow)});
  const double nll = nats / static_cast<double>(tokens);
  EXPECT_EQ(got["tokens"], tokens);
  EXPECT_EQ(got["windows"], windows);
  EXPECT_NEAR(got["nll"].get<double>(), nll, 1e-9);
  EXPECT_NEAR(got["perplexity"].get<double>(), std::exp(nll), 1e-7);
  const double bytes = static_cast<double>(first_.size() + second_.size());
  EXPECT_NEAR(got["bits_per_byte"].get<double>(),
              nll / std::log(2.0) * static_cast<double>(ids.size()) / bytes, 1e-9);
  EXPECT_LT(nll, 4.5);  // the model has learnt English: a uniform guess costs 9.01
}

TEST_F(PerplexityTest, ShowsProgressOnATerminal) {
  std::string program = std::string(FOX_BINARY_DIR) + "/bin/fox-eval", text = TempPath("text");
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    execl(program.c_str(), "fox-eval", "perplexity", "--model", kDemo.c_str(), "--text",
          text.c_str(), "--window", "300", nullptr);
    _exit(127);
  }
  ASSERT_GT(child, 0);
  std::string shown;
  char buffer[4096];
  for (ssize_t n; (n = read(terminal, buffer, sizeof(buffer))) > 0;) {
    shown.append(buffer, static_cast<size_t>(n));
  }
  int status = -1;
  waitpid(child, &status, 0);
  close(terminal);
  EXPECT_EQ(status, 0) << shown;
  EXPECT_THAT(shown, HasSubstr("window 0 of 3"));
  EXPECT_THAT(shown, HasSubstr("\rwindow 3 of 3, loss "));
}

TEST_F(PerplexityTest, PruningDoesNotChangeIt) {
  const double off = Perplexity({"--acp", "off"})["nll"].get<double>();
  for (const char* acp : {"paper", "certified"}) {
    EXPECT_NEAR(Perplexity({"--acp", acp})["nll"].get<double>(), off, 1e-4) << acp;
  }
}

// The report of fox-eval acp on a golden model: as text, and as JSON.
std::pair<std::string, json> AcpOf(const char* model, int64_t tokens) {
  json ids = json::array();
  for (int64_t i = 0; i < tokens; ++i) ids.push_back((i * i * 31 + i * 7 + 5) % 512);
  WriteWhole(TempPath("ids.json"), ids.dump());
  const Ran ran = FoxEval({"acp", "--model", Golden(model), "--ids", TempPath("ids.json"), "--json",
                           TempPath("acp.json"), "--dtype", "f32", "--sweep=-2,-30"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  return {ran.out, json::parse(ReadWhole(TempPath("acp.json")))};
}

TEST(FoxEvalTest, AcpReportsBothBounds) {
  const auto& [out, report] = AcpOf("dev_pro_d64", 1000);
  EXPECT_LT(out.find("max_log_evicted_mass"), out.find("layer head "));
  EXPECT_EQ(std::count(out.begin() + static_cast<std::ptrdiff_t>(out.find("layer head ")),
                       out.end(), '\n'),
            1 + static_cast<int64_t>(report["heads"].size()));
  EXPECT_EQ(report["tokens"], 960);  // whole pages
  EXPECT_GT(report["heads_that_forget"], 0);
  ASSERT_EQ(report["sweep"].size(), 2u);
  for (const char* mode : {"paper", "certified"}) {
    SCOPED_TRACE(mode);
    const json &plain = report[mode], &loose = report["sweep"][0][mode],
               &strict = report["sweep"][1][mode];
    EXPECT_LE(plain["max_log_evicted_mass"].get<double>(), report["log_tolerance"].get<double>());
    EXPECT_LE(loose["max_log_evicted_mass"].get<double>(), -2);
    EXPECT_LE(strict["max_log_evicted_mass"].get<double>(), -30);
    EXPECT_GE(loose["nll_difference"]["largest"], strict["nll_difference"]["largest"]);
    for (const char* share : {"skipped_share", "evicted_share"}) {
      EXPECT_GT(loose[share].get<double>(), plain[share].get<double>()) << mode << share;
      EXPECT_GT(plain[share].get<double>(), strict[share].get<double>()) << mode << share;
    }
    for (const json& head : report["heads"]) {
      const auto first = head[mode]["first_live"].get<std::vector<int>>();
      SCOPED_TRACE(head);
      ASSERT_EQ(first.size(), 15u);
      EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
      // Kept pages by their definition.
      int64_t kept = 0;
      for (size_t p = 0; p < first.size(); ++p) kept += static_cast<int64_t>(p) + 1 - first[p];
      EXPECT_EQ(head[mode]["kept_pages"], kept);
      EXPECT_LE(head["certified"]["kept_pages"], head["paper"]["kept_pages"]);
    }
  }
  EXPECT_LE(report["certified_over_paper"]["kept_pages"].get<double>(), 1);
  // Without a bound nothing is pruned.
  EXPECT_EQ(report["off"]["blocks_pruned"], 0);
  EXPECT_EQ(report["off"]["pages_evicted"], 0);
  EXPECT_EQ(report["off"]["blocks_total"], report["certified"]["blocks_total"]);
  EXPECT_EQ(report["off"]["pages_written"], report["paper"]["pages_written"]);
}

// Each window has the loss of a separate text.
TEST_F(PerplexityTest, AcpMeasuresTheSameLoss) {
  const std::vector<int32_t> ids = Ids();
  ASSERT_GE(ids.size(), 512u);
  const Ran ran = FoxEval({"acp", "--model", kDemo, "--text", TempPath("text"), "--tokens", "256",
                           "--windows", "2", "--dtype", "f32", "--json", TempPath("acp.json")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json loss = json::parse(ReadWhole(TempPath("acp.json")))["loss"];
  EXPECT_EQ(loss["tokens"], 2 * 255);
  for (const char* mode : {"off", "paper", "certified"}) {
    const json alone = Perplexity({"--acp", mode, "--window", "256", "--max-windows", "2"});
    EXPECT_NEAR(loss["nll"][mode].get<double>(), alone["nll"].get<double>(), 1e-6) << mode;
  }
  double sum = 0;
  for (const json& bucket : loss["by_position"]) {
    const int64_t first = bucket["first"], end = bucket["end"];
    sum += bucket["off"].get<double>() * static_cast<double>(end - std::max<int64_t>(first, 1));
  }
  EXPECT_NEAR(sum / 255, loss["nll"]["off"].get<double>(), 1e-12);
  // 2^-24 for each of some hundred roundings, in logits of the order of ten.
  EXPECT_LE(loss["difference"]["rounding"]["largest"].get<double>(), 1e-3);
  EXPECT_LE(loss["difference"]["certified"]["largest"].get<double>(), 1e-3);
}

TEST(FoxEvalTest, AcpWithoutQkNorm) {  // the paper's bound has nothing to go by
  const json report = AcpOf("dev_llama_d64", 512).second;
  EXPECT_EQ(report["heads_that_forget"], 0);
  EXPECT_TRUE(report["certified_over_paper"]["kept_pages_forgetting"].is_null());
  EXPECT_TRUE(report["paper"]["max_log_evicted_mass"].is_null());
}

TEST(FoxEvalTest, MisuseIsToldInOneLine) {
  WriteWhole(TempPath("ids.json"), "[1, 2, 3]");
  WriteWhole(TempPath("far.json"), "[1, 2, 4000]");
  WriteWhole(TempPath("bad.json"), "[1, \"two\"]");
  WriteWhole(TempPath("latin"), "caf\xe9 au lait");
  WriteWhole(TempPath("empty"), "");
  const std::string tiny = Golden("tiny_rope"), out = TempPath("out");
  struct Case {
    std::vector<std::string> arguments;
    std::string said;
  };
  const std::vector<Case> cases = {
      {{"logits", "--modle", tiny}, "--model"},
      {{"logits", "--model", tiny, "--out", out}, "--ids is required"},
      {{"logits", "--model", tiny, "--ids", "/nonexistent.json", "--out", out},
       "/nonexistent.json"},
      {{"logits", "--model", "/nonexistent", "--ids", TempPath("ids.json"), "--out", out}, ""},
      {{"logits", "--model", tiny, "--ids", TempPath("bad.json"), "--out", out},
       "entry 1 is no token id"},
      {{"logits", "--model", tiny, "--ids", TempPath("far.json"), "--out", out}, "4000"},
      {{"logits", "--model", tiny, "--ids", TempPath("ids.json"), "--out", "/nonexistent/x"},
       "cannot write"},
      {{"greedy", "--model", tiny, "--ids", TempPath("far.json")}, "4000"},
      // A terabyte of pages.
      {{"greedy", "--model", kDemo, "--ids", TempPath("ids.json"), "--acp", "off", "--dtype", "f64",
        "--new", "16777216"},
       "take fewer --ids, a smaller --new"},
      {{"perplexity", "--model", kDemo, "--text", "/nonexistent.txt"}, "/nonexistent.txt"},
      {{"perplexity", "--model", kDemo, "--text", TempPath("latin")}, "document 0"},
      {{"perplexity", "--model", kDemo, "--text", TempPath("empty")}, "no two tokens"},
      {{"perplexity", "--model", tiny, "--text", TempPath("latin")}, "no tokenizer"},
      {{"perplexity", "--model", kDemo, "--windw", "7"}, "--window"},
      {{"acp", "--model", tiny}, "--text"},
      {{"acp", "--model", tiny, "--ids", TempPath("ids.json")}, "fewer than 64"},
      {{"acp", "--model", tiny, "--ids", TempPath("ids.json"), "--acp", "off"}, "--acp"},
      {{"acp", "--model", tiny, "--tokens", "many"}, "--tokens"},
      {{"acp", "--model", tiny, "--ids", TempPath("ids.json"), "--sweep", "-5,1"}, "'1'"}};
  for (const Case& c : cases) {
    const Ran ran = FoxEval(c.arguments);
    std::string command;
    for (const std::string& argument : c.arguments) command += argument + " ";
    EXPECT_EQ(ran.status, 78) << command;
    EXPECT_EQ(ran.out, "") << command;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << command << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(c.said)) << command;
  }
  EXPECT_EQ(FoxEval({"perplexty"}).status, 2);
  EXPECT_EQ(FoxEval({"--help"}).status, 0);
}

}  // namespace
}  // namespace fox
