// fox-server and fox-cli as processes, with the demo model: exit codes, signals, one-line errors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/fixtures/server_process.h"
#include "tests/models/temporary_dir.h"

namespace fox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBin = std::string(FOX_BINARY_DIR) + "/bin/";
const std::string kDemo = std::string(FOX_SOURCE_DIR) + "/models/demo";
const std::string kWithoutTokenizer = std::string(FOX_SOURCE_DIR) + "/tests/golden/tiny_fla";

constexpr double kPatience = 60;  // seconds

// Runs a command to its end and returns the exit code.
int Finish(const std::vector<std::string>& arguments, std::string* output) {
  ChildProcess process({arguments, {}, ""});
  const int code = process.WaitEnd(kPatience).value_or(-1);
  *output = process.output();
  return code;
}

std::vector<std::string> Cli(const ServerProcess& server, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), kBin + "fox-cli");
  arguments.push_back("--target=" + server.target());
  return arguments;
}

// A client that reads a long answer, which has begun.
struct LongAnswer {
  explicit LongAnswer(const ServerProcess& server)
      : process({Cli(server, {"generate", "Once", "--max-tokens=60000", "--ignore-eos"}), {}, ""}) {
    EXPECT_TRUE(
        process.WaitOutput(kPatience, [](const std::string& output) { return !output.empty(); }));
  }
  void ExpectUnavailable() {
    EXPECT_EQ(process.WaitEnd(kPatience), 1);
    EXPECT_THAT(process.output(), HasSubstr("UNAVAILABLE"));
  }
  ChildProcess process;
};

ServerStart Demo(const std::vector<std::string>& flags = {}) {
  ServerStart start;
  start.program = kBin + "fox-server";
  start.ports.http = -1;
  start.flags = {"--model", kDemo, "--kv-cache-mb=64", "--max-num-seqs=4"};
  start.flags.insert(start.flags.end(), flags.begin(), flags.end());
  return start;
}

TEST(ProcessTest, WrongFlagsAndModelsExitWith78AndOneLine) {
  const TemporaryDir sampled;  // as a model that was saved with a top_p that is no share
  for (const char* name : {"config.json", "model.safetensors"}) {
    sampled.Write(name, FileContent(kWithoutTokenizer + "/" + name));
  }
  sampled.Write("generation_config.json", R"({"top_p": 1.5})");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "--model: must name"},
      {{"--modle", kDemo}, "did you mean --model?"},
      {{"--model", kDemo, "--port=1"}, "--grpc-port or --http-port"},
      {{kDemo}, "did you mean --model " + kDemo + "?"},
      {{"--model", kDemo, "--dtype=fp16"}, "of 16 bits, bf16 alone is supported"},
      {{"--model", kDemo, "--quantization=fp8", "--allow-nonfinite"}, "fp8 has no infinity"},
      {{"--model", kDemo, "--grpc-port=70000"}, "--grpc-port"},
      {{"--model", kDemo, "--host=0.0.0.0"}, "--host"},
      {{"--model", kDemo, "--log-tolerance=0"}, "--log-tolerance"},  // would drop all keys
      {{"--model", "no/such", "--grpc-port=0"}, "no/such: the model directory does not exist"},
      {{"--check-model", kDemo + "/config.json"}, "the model path is not a directory"},
      {{"--check-model", kWithoutTokenizer, "--add-bos-to-ids"}, "puts no bos before a text"},
      {{"--check-model", sampled.path()}, "--generation-config none leaves this file out"},
  };
  for (const auto& [arguments, said] : cases) {
    SCOPED_TRACE(said);
    std::vector<std::string> command = {kBin + "fox-server"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::string output;
    EXPECT_EQ(Finish(command, &output), 78) << output;
    EXPECT_EQ(output.find('\n'), output.size() - 1) << output;
    EXPECT_THAT(output, HasSubstr("fox-server: "));
    EXPECT_THAT(output, HasSubstr(said));
    EXPECT_THAT(output, Not(HasSubstr("listening")));
  }
}

TEST(ProcessTest, AModelWithoutForgetGatesIsNotPruned) {
  const std::string llama = std::string(FOX_SOURCE_DIR) + "/tests/golden/transformers/llama_kv";
  for (const bool forgets : {false, true}) {
    SCOPED_TRACE(forgets);
    ServerProcess server(
        Demo({"--model", llama + (forgets ? "1_default_tied_forgetting" : "3_default"),
              "--acp=certified"}));
    ASSERT_TRUE(server.WaitReady());
    const auto none = HasSubstr("pruning          none: the model has no forget gates");
    EXPECT_EQ(::testing::Value(server.log(), none), !forgets);
    std::string info;
    EXPECT_EQ(Finish(Cli(server, {"info"}), &info), 0);
    const std::string yes = forgets ? "true" : "false";
    EXPECT_THAT(info, HasSubstr(forgets ? R"("acp_mode":"CERTIFIED")" : R"("acp_mode":"OFF")"));
    EXPECT_THAT(info, HasSubstr(R"("layout":"transformers")"));
    for (const char* key : {"forget_gates", "attention_sink", "qk_norm_cap"}) {
      EXPECT_THAT(info, HasSubstr("\"" + std::string(key) + "\":" + yes));
    }
  }
}

// Pools larger than any machine, and limits of the address space below the model's size, are errors
// before anything is loaded, never an abort.
TEST(ProcessTest, TooLittleMemoryIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more than any limit";
#endif
  std::string output;
  for (const char* mb : {"100000000", "1073741824"}) {
    SCOPED_TRACE(mb);
    const std::vector<std::string> command = {kBin + "fox-server", "--model", kDemo,
                                              std::string("--kv-cache-mb=") + mb};
    EXPECT_EQ(Finish(command, &output), 78) << output;
    EXPECT_THAT(output, HasSubstr("do not fit into the"));
    EXPECT_EQ(output.find('\n'), output.size() - 1) << output;
  }
  // A pool that leaves no room for calls.
  EXPECT_EQ(Finish({kBin + "fox-server", "--model", kDemo, "--call-memory-mb=1000000"}, &output),
            78);
  EXPECT_THAT(output, HasSubstr("3000128 MiB for calls and the process (3 x --call-memory-mb"));
  for (const char* kib : {"100000", "200000", "400000"}) {
    const std::string command = std::string("ulimit -c 0; ulimit -v ") + kib + "; exec " + kBin +
                                "fox-server --kv-cache-mb=200 --check-model " + kDemo;
    const int code = Finish({"/bin/sh", "-c", command}, &output);
    if (output.find("error while loading shared libraries") != std::string::npos) continue;
    EXPECT_EQ(code, 78) << kib << ": " << output;
    EXPECT_THAT(output, Not(HasSubstr("check failed"))) << kib;
  }
}

TEST(ProcessTest, HelpVersionAndCheckModel) {
  std::string output;
  EXPECT_EQ(Finish({kBin + "fox-server", "--help"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("--max-num-seqs N"));
  EXPECT_THAT(output, HasSubstr("fox-server --help all lists all "));
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 33);  // 16 flags fit one screen
  EXPECT_THAT(output, Not(HasSubstr("--stall-timeout")));
  EXPECT_EQ(Finish({kBin + "fox-server", "--help", "all"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("--stall-timeout SECONDS"));
  EXPECT_EQ(Finish({kBin + "fox-server", "--version"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("fox-server "));
  EXPECT_EQ(Finish({kBin + "fox-server", "--check-model", kDemo, "--kv-cache-mb=64"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("tokenizer: sentencepiece"));
}

TEST(ProcessTest, ServesTheDemoModelAndStopsOnSigterm) {
  ServerProcess server(Demo());
  ASSERT_TRUE(server.WaitReady());
  std::string output, again;
  const auto cli = [&](const std::vector<std::string>& arguments, std::string* said) {
    return Finish(Cli(server, arguments), said);
  };
  EXPECT_EQ(cli({"health"}, &output), 0);
  EXPECT_EQ(output, "SERVING\n");
  const std::vector<std::string> generate = {"generate", "Once upon a time", "--max-tokens=20",
                                             "--seed=11"};
  EXPECT_EQ(cli(generate, &output), 0);
  EXPECT_GT(output.size(), 20u);
  EXPECT_EQ(cli(generate, &again), 0);
  EXPECT_EQ(output, again);
  EXPECT_EQ(cli({"score", "Once upon a time"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("perplexity"));
  EXPECT_EQ(cli({"tokenize", "a cat"}, &output), 0);
  EXPECT_EQ(cli({"detokenize", output}, &again), 0);
  EXPECT_EQ(again, "a cat\n");
  // Standard error goes to the same pipe.
  EXPECT_EQ(cli({"generate", "x", "--max-tokens=3", "--ignore-eos", "--stats"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("\nLENGTH, 3 prompt + 3 generated tokens\n"));
  EXPECT_EQ(cli({"generate", "x", "--top-p=2"}, &output), 2);
  EXPECT_EQ(cli({"generate", "x", "--log-tolerance=-1"}, &output), 1);
  EXPECT_THAT(output, HasSubstr("INVALID_ARGUMENT: acp.log_tolerance"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitEnd(kPatience), 0) << server.log();
}

TEST(ProcessTest, ATraceIsCompleteAfterAnyEndOfTheServer) {
  const std::string path = ::testing::TempDir() + "/process_test_trace.json";
  for (const int signal : {SIGTERM, SIGKILL}) {
    SCOPED_TRACE(signal);
    ServerProcess server(Demo({"--trace=" + path, "--log-level=debug", "--shutdown-timeout=60"}));
    ASSERT_TRUE(server.WaitReady());
    std::string output;
    EXPECT_EQ(
        Finish(Cli(server, {"generate", "Once upon a time", "--max-tokens=20", "--ignore-eos"}),
               &output),
        0);
    LongAnswer client(server);
    server.Signal(signal);
    if (signal == SIGTERM) {
      ASSERT_TRUE(server.WaitLog("NOT_SERVING"));
      server.Signal(SIGTERM);  // ends the drain, and with it the long request
      EXPECT_EQ(server.WaitEnd(10), 0) << server.log();
      client.ExpectUnavailable();
    }
    server.WaitEnd(kPatience);
    EXPECT_THAT(server.log(), HasSubstr("tokens 0+"));  // a plan in the log

    std::map<std::string, int> names;
    int64_t tokens = 0;
    std::ifstream file(path);
    const nlohmann::json trace = nlohmann::json::parse(file);
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      const std::string name = event.at("name");
      ++names[name.rfind("step ", 0) == 0 ? "step" : name];
      if (name == "submit") tokens += event.at("args").at("tokens").get<int64_t>();
    }
    EXPECT_GE(names["step"], 20);
    EXPECT_GE(tokens, 20);
    EXPECT_EQ(names["collect"], names["step"]);
    // A begin and an end for each request that ended.
    const int requests = signal == SIGTERM ? 2 : 1;
    for (const char* phase : {"request", "queued", "prefill", "decode"}) {
      EXPECT_EQ(names[phase], 2 * requests) << phase;
    }
  }
}

// A pipe of 4 KiB, which is full soon.
class SmallPipe {
 public:
  SmallPipe() {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(ends_[1], F_SETPIPE_SZ, 4096), 4096);
  }
  ~SmallPipe() {
    CloseReader();
    close(ends_[1]);
  }
  int writer() const { return ends_[1]; }
  void CloseReader() {
    if (ends_[0] >= 0) close(std::exchange(ends_[0], -1));
  }

 private:
  int ends_[2] = {-1, -1};
};

// If standard error is not read, or its reader has left, requests are still served, and a signal
// ends the server.
TEST(ProcessTest, TheLogMayBeStuckOrGone) {
  for (const bool gone : {false, true}) {
    SCOPED_TRACE(gone);
    SmallPipe log;
    ServerStart start = Demo({"--log-level=debug"});
    start.errors = "/dev/fd/" + std::to_string(log.writer());
    ServerProcess server(start);
    ASSERT_TRUE(server.WaitReady());
    if (gone) log.CloseReader();
    std::string output;
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(
          Finish(Cli(server, {"generate", "Once", "--max-tokens=60", "--ignore-eos"}), &output), 0)
          << output;
    }
    server.Signal(SIGTERM);
    EXPECT_EQ(server.WaitEnd(kPatience), 0) << server.log();
  }
}

// Every line on standard error is a JSON object, from the first warning to the last line.
TEST(ProcessTest, JsonLogsAreJson) {
  std::string output;
  EXPECT_EQ(Finish({kBin + "fox-server", "--modle=x", "--log-format=json"}, &output), 78);
  EXPECT_THAT(std::string(nlohmann::json::parse(output).at("reason")), HasSubstr("--model"));

  ServerStart start = Demo({"--log-format=json", "--log-level=debug"});
  start.variables = {"FOX_HOST=tcp://10.0.0.1:50051"};
  ServerProcess server(start);
  ASSERT_TRUE(server.WaitReady());
  EXPECT_EQ(Finish(Cli(server, {"generate", "Once", "--max-tokens=3"}), &output), 0);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitEnd(kPatience), 0);
  std::istringstream lines(server.log());
  std::set<std::string> events;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("listening on ", 0) == 0) continue;  // standard output
    ASSERT_TRUE(nlohmann::json::accept(line)) << line;
    events.insert(nlohmann::json::parse(line).at("event"));
  }
  for (const char* event : {"model", "flags", "environment", "step", "stopped"}) {
    EXPECT_EQ(events.count(event), 1u) << event;
  }
}

TEST(ProcessTest, ASignalWhileLoadingEndsTheServerAtOnce) {
  ServerStart start = Demo();
  start.variables = {"FOX_HOST=tcp://10.0.0.1:50051"};
  ServerProcess server(start);
  ASSERT_TRUE(server.WaitLog("FOX_HOST is ignored"));  // before the model is opened
  server.Signal(SIGTERM);
  EXPECT_EQ(server.WaitEnd(kPatience), 0) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("stopped while loading"));
  EXPECT_THAT(server.log(), Not(HasSubstr("listening")));
}

// process_end_test has the other signals, and core files.
TEST(ProcessTest, ACrashHasItsExitCode) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers tell more";
#endif
  ServerProcess server(Demo());
  ASSERT_TRUE(server.WaitReady());
  server.Signal(SIGSEGV);
  EXPECT_EQ(server.WaitEnd(kPatience), 70) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("error the process crashes"));
}

}  // namespace
}  // namespace fox
