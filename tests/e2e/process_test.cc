// fox-server and fox-cli as processes, with the demo model: exit codes, signals, one-line errors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace fox {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBin = std::string(FOX_BINARY_DIR) + "/bin/";
const std::string kDemo = std::string(FOX_SOURCE_DIR) + "/models/demo";
const std::string kWithoutTokenizer = std::string(FOX_SOURCE_DIR) + "/tests/golden/tiny_fla";

// A child whose standard output is read through a pipe; standard error goes with it, or to the
// descriptor `errors`.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, int errors = -1) {
    int ends[2];
    if (pipe(ends) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(errors >= 0 ? errors : ends[1], STDERR_FILENO);
      close(ends[0]);
      close(ends[1]);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = ends[0];
  }
  ~Process() {
    if (!waited_) {
      kill(pid_, SIGKILL);
      Wait();
    }
    close(out_);
  }

  // Reads until `text` has appeared or the output ends.
  bool ReadUntil(const std::string& text) {
    while (output.find(text) == std::string::npos || output.back() != '\n') {
      if (!ReadSome()) return false;
    }
    return true;
  }
  // Waits for any output; false when there will be none.
  bool ReadSome() {
    std::array<char, 4096> buffer = {};
    const ssize_t n = read(out_, buffer.data(), buffer.size());
    if (n > 0) output.append(buffer.data(), static_cast<size_t>(n));
    return n > 0;
  }
  void Signal(int signal) { kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  // The exit code after reading everything; 128 + signal when one ended it.
  int Wait() {
    int status = 0;
    if (waited_) return -1;
    ReadUntil("\xff");  // never appears
    waitpid(pid_, &status, 0);
    waited_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string output;

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  bool waited_ = false;
};

// Runs a command to its end.
int Finish(std::vector<std::string> arguments, std::string* output) {
  Process process(std::move(arguments));
  const int code = process.Wait();
  *output = process.output;
  return code;
}

std::vector<std::string> ServerCommand(std::vector<std::string> more) {
  std::vector<std::string> all = {kBin + "fox-server", "--model",          kDemo,
                                  "--grpc-port=0",     "--kv-cache-mb=64", "--max-num-seqs=4"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// "127.0.0.1:PORT" from the line the server prints.
std::string TargetOf(const Process& server) {
  const std::string mark = "listening on ";
  const size_t begin = server.output.find(mark) + mark.size();
  return server.output.substr(begin, server.output.find('\n', begin) - begin);
}

TEST(ProcessTest, WrongFlagsAndModelsExitWith78AndOneLine) {
  Process other(ServerCommand({}));
  ASSERT_TRUE(other.ReadUntil("listening on "));
  const std::string taken = TargetOf(other).substr(TargetOf(other).find(':') + 1);
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "--model: must name"},
      {{"--modle", kDemo}, "did you mean --model?"},
      {{"--model", kDemo, "--port=1"}, "--grpc-port or --http-port"},
      {{kDemo}, "did you mean --model " + kDemo + "?"},
      {{"--model", kDemo, "--dtype=fp16"}, "of 16 bits, bf16 alone is supported"},
      {{"--model", kDemo, "--grpc-port=70000"}, "--grpc-port"},
      {{"--model", kDemo, "--host=0.0.0.0"}, "--host"},
      {{"--model", kDemo, "--log-tolerance=0"}, "--log-tolerance"},  // would permit to drop all
      {{"--model", "no/such", "--grpc-port", taken}, "no/such: the model directory does not exist"},
      {{"--model", kDemo, "--grpc-port", taken}, "Address already in use"},
      {{"--check-model", kDemo + "/config.json"}, "the model path is not a directory"},
      {{"--check-model", kWithoutTokenizer, "--add-bos-to-ids"}, "puts no bos before a text"},
  };
  for (const auto& [arguments, said] : cases) {
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

TEST(ProcessTest, StartsWithWhatDiffersFromTheDefaults) {
  Process server(ServerCommand({"--dtype=float32"}));
  ASSERT_TRUE(server.ReadUntil("listening on "));
  EXPECT_THAT(server.output, HasSubstr("--max-num-seqs=4\n--kv-cache-mb=64\n"));
  EXPECT_THAT(server.output, HasSubstr("--dtype=f32\n"));
  EXPECT_THAT(server.output, Not(HasSubstr("--max-logprobs")));
  EXPECT_THAT(server.output, Not(HasSubstr("--http-host")));
  EXPECT_THAT(server.output, Not(HasSubstr("no tokenizer")));
  const std::string tiny = std::string(FOX_SOURCE_DIR) + "/tests/golden/tiny_rope";
  Process without(ServerCommand({"--model", tiny}));
  ASSERT_TRUE(without.ReadUntil("listening on "));
  EXPECT_THAT(without.output, HasSubstr("warning no tokenizer"));
  EXPECT_THAT(without.output, HasSubstr("tokenizer.json"));
}

// Under limits of the address space that the model does not fit into, and pools larger than any
// machine: told before anything is loaded, never an abort.
TEST(ProcessTest, TooLittleMemoryIsTold) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more than any limit";
#endif
  std::string output;
  for (const char* mb : {"100000000", "1073741824"}) {
    EXPECT_EQ(Finish(ServerCommand({std::string("--kv-cache-mb=") + mb}), &output), 78) << output;
    EXPECT_THAT(output, HasSubstr("do not fit into the"));
    EXPECT_EQ(output.find('\n'), output.size() - 1) << output;
  }
  for (const char* kib : {"100000", "200000", "400000"}) {
    const std::string command = std::string("ulimit -c 0; ulimit -v ") + kib + "; exec " + kBin +
                                "fox-server --kv-cache-mb=200 --check-model " + kDemo;
    const int code = Finish({"/bin/sh", "-c", command}, &output);
    if (output.find("error while loading shared libraries") != std::string::npos) continue;
    EXPECT_EQ(code, 78) << kib << ": " << output;
    EXPECT_THAT(output, Not(HasSubstr("check failed")));
  }
}

TEST(ProcessTest, HelpVersionAndCheckModel) {
  std::string output;
  EXPECT_EQ(Finish({kBin + "fox-server", "--help"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("--max-num-seqs N"));
  EXPECT_THAT(output, HasSubstr("fox-server --help all lists all "));
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 32);  // 15 flags fit one screen
  EXPECT_THAT(output, Not(HasSubstr("--stall-timeout")));
  EXPECT_EQ(Finish({kBin + "fox-server", "--help", "all"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("--stall-timeout SECONDS"));
  EXPECT_EQ(Finish({kBin + "fox-server", "--version"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("fox-server "));
  EXPECT_EQ(Finish({kBin + "fox-server", "--check-model", kDemo, "--kv-cache-mb=64"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("tokenizer: sentencepiece"));
}

TEST(ProcessTest, ServesTheDemoModelAndStopsOnSigterm) {
  Process server(ServerCommand({}));
  ASSERT_TRUE(server.ReadUntil("listening on "));
  const std::string target = "--target=" + TargetOf(server);
  std::string output, again;
  EXPECT_EQ(Finish({kBin + "fox-cli", "health", target}, &output), 0);
  EXPECT_EQ(output, "SERVING\n");
  const std::vector<std::string> generate = {kBin + "fox-cli",  "generate",  "Once upon a time",
                                             "--max-tokens=20", "--seed=11", target};
  EXPECT_EQ(Finish(generate, &output), 0);
  EXPECT_GT(output.size(), 20u);
  EXPECT_EQ(Finish(generate, &again), 0);
  EXPECT_EQ(output, again);
  EXPECT_EQ(Finish({kBin + "fox-cli", "score", "Once upon a time", target}, &output), 0);
  EXPECT_THAT(output, HasSubstr("perplexity"));
  EXPECT_EQ(Finish({kBin + "fox-cli", "tokenize", "a cat", target}, &output), 0);
  EXPECT_EQ(Finish({kBin + "fox-cli", "detokenize", output, target}, &again), 0);
  EXPECT_EQ(again, "a cat\n");
  // Both streams are one pipe here.
  EXPECT_EQ(Finish({kBin + "fox-cli", "generate", "x", "--max-tokens=3", "--ignore-eos", "--stats",
                    target},
                   &output),
            0);
  EXPECT_THAT(output, HasSubstr("\nLENGTH, 3 prompt + 3 generated tokens\n"));
  EXPECT_EQ(Finish({kBin + "fox-cli", "generate", "x", "--top-p=2", target}, &output), 2);
  EXPECT_EQ(Finish({kBin + "fox-cli", "generate", "x", "--log-tolerance=-1", target}, &output), 1);
  EXPECT_THAT(output, HasSubstr("INVALID_ARGUMENT: acp.log_tolerance"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.output;
}

TEST(ProcessTest, TheClientSuggests) {
  std::string output;
  EXPECT_EQ(Finish({kBin + "fox-cli", "gen", "x"}, &output), 2);
  EXPECT_THAT(output, HasSubstr("unknown command gen; did you mean generate?"));
  EXPECT_EQ(Finish({kBin + "fox-cli", "chat"}, &output), 2);
  EXPECT_THAT(output, HasSubstr("unknown command chat; fox-cli --help lists them"));
}

TEST(ProcessTest, TargetsAreTakenAsPeopleWriteThem) {
  Process server(ServerCommand({"--http-port=0"}));
  ASSERT_TRUE(server.ReadUntil("listening for HTTP on "));
  std::string output;
  EXPECT_EQ(
      Finish({kBin + "fox-cli", "health", "--target=http://" + TargetOf(server) + "/"}, &output), 0)
      << output;
  const size_t at = server.output.find("HTTP on ") + 8;
  const std::string http = server.output.substr(at, server.output.find('\n', at) - at);
  EXPECT_EQ(Finish({kBin + "fox-cli", "health", "--target", http}, &output), 1);
  EXPECT_THAT(output, HasSubstr("this is an HTTP port, and gRPC has the server's --grpc-port"));
  EXPECT_EQ(output.find('\n'), output.size() - 1) << output;
  EXPECT_EQ(Finish({kBin + "fox-cli", "health", "--target", "127.1.2.3"}, &output), 1);
  EXPECT_THAT(output, HasSubstr("127.1.2.3:50051"));
}

TEST(ProcessTest, ATraceLoadsWhateverEndsTheServer) {
  const std::string path = ::testing::TempDir() + "/process_test_trace.json";
  for (const int signal : {SIGTERM, SIGKILL}) {
    Process server(ServerCommand({"--trace=" + path, "--log-level=debug"}));
    ASSERT_TRUE(server.ReadUntil("listening on "));
    std::string output;
    EXPECT_EQ(Finish({kBin + "fox-cli", "generate", "Once upon a time", "--max-tokens=20",
                      "--ignore-eos", "--target=" + TargetOf(server)},
                     &output),
              0);
    Process client({kBin + "fox-cli", "generate", "Once", "--max-tokens=60000", "--ignore-eos",
                    "--target=" + TargetOf(server)});
    // Not a whole line: the server's log is not read meanwhile, and a full pipe would stop it.
    ASSERT_TRUE(client.ReadSome());
    server.Signal(signal);
    if (signal == SIGTERM) {
      ASSERT_TRUE(server.ReadUntil("shutting down"));
      server.Signal(SIGTERM);  // ends the long request
    }
    server.Wait();
    EXPECT_THAT(server.output, HasSubstr("tokens 0+"));  // a plan in the log

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
    EXPECT_GT(names["attention"], 20);
    // Each begin and each end of the requests that ended.
    const int requests = signal == SIGTERM ? 2 : 1;
    for (const char* phase : {"request", "queued", "prefill", "decode"}) {
      EXPECT_EQ(names[phase], 2 * requests) << phase;
    }
  }
}

TEST(ProcessTest, ASecondSignalEndsTheDrain) {
  Process server(ServerCommand({"--shutdown-timeout=60"}));
  ASSERT_TRUE(server.ReadUntil("listening on "));
  Process client({kBin + "fox-cli", "generate", "Once", "--max-tokens=60000", "--ignore-eos",
                  "--target=" + TargetOf(server)});
  ASSERT_TRUE(client.ReadUntil("\n"));
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.ReadUntil("NOT_SERVING"));
  const auto start = std::chrono::steady_clock::now();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.output;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(client.Wait(), 1);
  EXPECT_THAT(client.output, HasSubstr("UNAVAILABLE"));
}

// A pipe that holds little, so that it is full soon.
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

// Standard error that is not read, or whose reader has left: requests are served all the same, and
// a signal ends the server.
TEST(ProcessTest, TheLogMayBeStuckOrGone) {
  for (const bool gone : {false, true}) {
    SmallPipe log;
    Process server(ServerCommand({"--log-level=debug"}), log.writer());
    ASSERT_TRUE(server.ReadUntil("listening on "));
    if (gone) log.CloseReader();
    const std::string target = "--target=" + TargetOf(server);
    std::string output;
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(
          Finish({kBin + "fox-cli", "generate", "Once", "--max-tokens=100", "--ignore-eos", target},
                 &output),
          0)
          << output;
    }
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Wait(), 0) << server.output;
  }
}

// Every line on standard error is an object, from the first warning to the last word.
TEST(ProcessTest, JsonLogsAreJson) {
  std::string output;
  EXPECT_EQ(Finish({kBin + "fox-server", "--modle=x", "--log-format=json"}, &output), 78);
  EXPECT_THAT(std::string(nlohmann::json::parse(output).at("reason")), HasSubstr("--model"));

  setenv("FOX_HOST", "tcp://10.0.0.1:50051", 1);
  Process server(ServerCommand({"--log-format=json", "--log-level=debug"}));
  unsetenv("FOX_HOST");
  ASSERT_TRUE(server.ReadUntil("listening on "));
  EXPECT_EQ(Finish({kBin + "fox-cli", "generate", "Once", "--max-tokens=3",
                    "--target=" + TargetOf(server)},
                   &output),
            0);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  std::istringstream lines(server.output);
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
  setenv("FOX_HOST", "tcp://10.0.0.1:50051", 1);
  Process server(ServerCommand({}));
  unsetenv("FOX_HOST");
  ASSERT_TRUE(server.ReadUntil("FOX_HOST is ignored"));  // before the model is opened
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.output;
  EXPECT_THAT(server.output, HasSubstr("stopped while loading"));
  EXPECT_THAT(server.output, Not(HasSubstr("listening")));
}

// A crash is told by the exit code, and where cores are wanted by the signal: into one byte, here.
// SIGBUS comes by the handler of mapped files.
TEST(ProcessTest, ACrashIsToldByTheExitCodeOrByItsCore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers tell more";
#endif
  for (const auto& [cores, crash, code] :
       {std::tuple("0", SIGSEGV, 70), {"1", SIGSEGV, 128 + SIGSEGV}, {"1", SIGBUS, 128 + SIGBUS}}) {
    std::string command = std::string("ulimit -c ") + cores + "; exec";
    for (const std::string& word : ServerCommand({})) command += " " + word;
    Process server({"/bin/sh", "-c", command});
    ASSERT_TRUE(server.ReadUntil("listening on "));
    server.Signal(crash);
    EXPECT_EQ(server.Wait(), code) << server.output;
    EXPECT_THAT(server.output, HasSubstr("error the process crashes"));
  }
}

// The thread of this name, or -1.
pid_t ThreadNamed(pid_t process, const std::string& name) {
  namespace fs = std::filesystem;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
    std::string comm;
    std::getline(std::ifstream(entry.path() / "comm"), comm);
    if (comm == name) return std::stoi(entry.path().filename());
  }
  return -1;
}

// The engine's thread is held by ptrace, as a device that hangs would hold it.
TEST(ProcessTest, AHangingStepEndsTheProcess) {
  Process server(ServerCommand({"--step-timeout=0.3"}));
  ASSERT_TRUE(server.ReadUntil("listening on "));
  Process client({kBin + "fox-cli", "generate", "Once", "--max-tokens=60000", "--ignore-eos",
                  "--target=" + TargetOf(server)});
  ASSERT_TRUE(client.ReadSome());
  const pid_t engine = ThreadNamed(server.pid(), "engine");
  ASSERT_GT(engine, 0);
  if (ptrace(PTRACE_SEIZE, engine, nullptr, nullptr) != 0) GTEST_SKIP() << "no ptrace";
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, engine, nullptr, nullptr), 0);
  int status = 0;
  const auto start = std::chrono::steady_clock::now();
  while (waitpid(engine, &status, __WALL) == engine && WIFSTOPPED(status)) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(server.Wait(), 70) << server.output;
  EXPECT_THAT(server.output, HasSubstr("a step hangs"));
  EXPECT_EQ(client.Wait(), 1);
  EXPECT_THAT(client.output, HasSubstr("UNAVAILABLE"));
}

}  // namespace
}  // namespace fox
