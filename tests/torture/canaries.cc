// Contamination: every request carries a word of its own in its prompt, its ids and its mistakes,
// over a model that repeats its prompt. No answer, no error and no trailer holds another request's
// word, and neither the log at its most talkative level nor the metrics hold any.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fox/v1/inference.pb.h"
#include "fox/v1/tokenizer.pb.h"
#include "tests/e2e/http_client.h"
#include "tests/torture/part.h"
#include "tests/torture/raw_call.h"
#include "tests/torture/torture_server.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace fox {
namespace {

constexpr char kMark[] = "QX7";  // opens each word; no digit of base 16, so none within another
constexpr size_t kWordBytes = 3 + 16;

// Hashed, so that neighbours have nothing in common.
std::string WordOf(int64_t index) {
  uint64_t x = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15;
  x ^= x >> 31;
  return absl::StrFormat("%s%016x", kMark, x);
}

// Whether `bytes` hold a word, or the beginning of one, that is not `own`.
bool HoldsAnother(const std::string& bytes, const std::string& own) {
  for (size_t at = bytes.find(kMark); at != std::string::npos; at = bytes.find(kMark, at + 1)) {
    const std::string found = bytes.substr(at, kWordBytes);
    // The end of a text may cut its own word.
    const std::string word = found.substr(0, found.find_first_not_of("0123456789abcdef", 3));
    if (own.compare(0, word.size(), word) != 0) return true;
  }
  return false;
}

// What this process writes to standard error from now on is read here; what people are to see goes
// where it went before.
class LogReader {
 public:
  LogReader() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    before_ = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    reader_ = std::thread([this, in = ends[0]] { Read(in); });
  }
  ~LogReader() { Finish(); }
  // Gives standard error back, and waits until the rest is read.
  void Finish() {
    if (!reader_.joinable()) return;
    dup2(before_, STDERR_FILENO);
    close(before_);
    reader_.join();
  }

  std::atomic<int64_t> bytes{0}, lines{0}, found{0};

 private:
  void Read(int in) {
    std::string rest;
    char buffer[1 << 16];
    for (ssize_t n = 0; (n = read(in, buffer, sizeof(buffer))) > 0;) {
      rest.append(buffer, static_cast<size_t>(n));
      bytes += n;
      const size_t end = rest.rfind('\n') + 1;
      Look(rest.substr(0, end));
      rest.erase(0, end);
    }
    Look(rest);
    close(in);
  }
  void Look(const std::string& text) {
    lines += std::count(text.begin(), text.end(), '\n');
    if (absl::StrContains(text, kMark)) ++found;
    if (absl::StartsWith(text, "canaries: ")) dprintf(before_, "%s", text.c_str());
  }

  int before_ = -1;
  std::thread reader_;
};

struct Canaries {
  Part* part;
  TortureServer* server;
  int64_t requests;
  std::atomic<int64_t> next{0}, ended{0}, right{0}, refused{0}, leaked{0};

  void Look(const std::string& bytes, const std::string& own, const char* where) {
    if (!HoldsAnother(bytes, own)) return;
    ++leaked;
    part->Check(false, absl::StrCat("another's word in ", where));
  }
};

// A request by gRPC that holds `word` where it can.
RawRequest GrpcRequest(const std::string& word, uint64_t kind) {
  const std::string prompt = word + "|";
  v1::GenerateRequest fox;
  fox.set_text(prompt);
  fox.mutable_sampling()->set_temperature(0);
  fox.mutable_stopping()->set_max_tokens(24);
  switch (kind) {
    case 0:
      return {"/fox.v1.Inference/GenerateStream", fox.SerializeAsString()};
    case 1:
      fox.mutable_output()->set_echo(true);
      fox.mutable_sampling()->set_n(2);
      return {"/fox.v1.Inference/Generate", fox.SerializeAsString()};
    case 2:
      fox.set_model(word);
      return {"/fox.v1.Inference/Generate", fox.SerializeAsString()};
    case 3:
      fox.mutable_stopping()->add_stop(word.substr(5) + "|" + word.substr(0, 6));
      return {"/fox.v1.Inference/GenerateStream", fox.SerializeAsString()};
    case 4:
      for (int i = 0; i < 17; ++i) fox.mutable_stopping()->add_stop(word);
      return {"/fox.v1.Inference/Generate", fox.SerializeAsString()};
    case 5:
      return {"/fox.v1.Inference/" + word, fox.SerializeAsString()};
    case 6:
      return {"/fox.v1.Inference/Generate", "\x1a\x40" + word};  // cut short
    case 7: {
      v1::TokenizeRequest tokenize;
      tokenize.set_text(word);
      tokenize.set_pieces(true);
      return {"/fox.v1.Tokenizer/Tokenize", tokenize.SerializeAsString()};
    }
    case 8: {
      v1::ScoreRequest score;
      score.set_text(word);
      return {"/fox.v1.Inference/Score", score.SerializeAsString()};
    }
    default: {
      vllm::grpc::engine::GenerateRequest gateway;
      gateway.set_request_id("x");
      gateway.set_text(prompt);
      gateway.set_stream(true);
      gateway.mutable_sampling_params()->set_temperature(0);
      gateway.mutable_sampling_params()->set_max_tokens(24);
      return {"/vllm.grpc.engine.VllmEngine/Generate", gateway.SerializeAsString()};
    }
  }
}

// What a client reads in an answer: its texts and ids joined, and else its bytes.
std::string Readable(const std::string& method, const std::string& message) {
  if (absl::StrContains(method, "VllmEngine")) {
    vllm::grpc::engine::GenerateResponse event;
    event.ParseFromString(message);
    std::string text;
    for (const uint32_t id : event.chunk().token_ids()) text.push_back(static_cast<char>(id));
    return text;
  }
  if (absl::EndsWith(method, "Stream")) {
    v1::GenerateDelta event;
    event.ParseFromString(message);
    return event.delta().text();
  }
  if (absl::EndsWith(method, "Score")) {
    v1::ScoreResponse score;
    score.ParseFromString(message);
    std::string text;
    for (const uint32_t id : score.token_ids()) text.push_back(static_cast<char>(id));
    return text;
  }
  return message;
}

bool StartGrpc(Canaries* all, grpc::GenericStub& stub, std::function<void()> done) {
  const int64_t index = all->next++;
  if (index >= all->requests || all->part->OutOfTime()) return false;
  const std::string word = WordOf(index);
  RawRequest request = GrpcRequest(word, static_cast<uint64_t>(index) % 12);
  const std::string method = request.method;
  if (index % 97 == 0) request.deadline_ms = 3;
  const auto read = std::make_shared<std::string>();
  RawCall::Start(
      stub, request,
      [method, read, all, word, index](const std::string& message) {
        *read += Readable(method, message);
        all->Look(message, word, "an answer");
        return index % 31 != 0;  // some leave after their first message
      },
      [=, done = std::move(done)](const grpc::Status& status, const grpc::ClientContext& context) {
        all->Look(*read, word, "an answer's text");
        all->Look(status.error_message(), word, "an error");
        for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
          all->Look(std::string(value.data(), value.size()), word, "a trailer");
        }
        if (status.ok() && absl::StrContains(*read, word)) ++all->right;
        if (status.error_code() == grpc::RESOURCE_EXHAUSTED) ++all->refused;
        all->part->Tell(++all->ended, all->requests);
        done();
      });
  return true;
}

void RunHttp(Canaries* all) {
  auto client = std::make_unique<HttpClient>(all->server->http_port());
  while (true) {
    const int64_t index = all->next++;
    if (index >= all->requests || all->part->OutOfTime()) return;
    const std::string word = WordOf(index);
    nlohmann::json body = {{"prompt", word + "|"}, {"temperature", 0}, {"max_tokens", 24}};
    std::string path = "/v1/completions";
    const int64_t kind = index % 6;
    if (kind == 0) body["stream"] = true;
    if (kind == 1) body["echo"] = true;
    if (kind == 2) body["model"] = word;
    if (kind == 3) body[word] = word;
    if (kind == 4) path += "/" + word;
    client->SendRequest("POST", path, kind == 5 ? body.dump() + word : body.dump(),
                        "Content-Type: application/json\r\nX-Note: " + word + "\r\n");
    if (index % 101 == 0) {  // leaves
      client = std::make_unique<HttpClient>(all->server->http_port());
      ++all->ended;
      continue;
    }
    const HttpReply reply = client->Read();
    all->Look(reply.body, word, "an answer by HTTP");
    for (const auto& [name, value] : reply.headers) all->Look(value, word, "a header");
    if (reply.status == 200 && absl::StrContains(reply.body, word)) ++all->right;
    if (reply.status == 429) ++all->refused;
    if (reply.status == 0 || reply.headers.count("connection") > 0) {
      client = std::make_unique<HttpClient>(all->server->http_port());
    }
    ++all->ended;
  }
}

// Reads the metrics until all is done.
void Scrape(Canaries* all, const std::atomic<bool>* over, std::atomic<int64_t>* scrapes) {
  while (!*over) {
    HttpClient client(all->server->metrics_port());
    const HttpReply reply = client.Get("/metrics");
    all->part->Check(absl::StrContains(reply.body, "fox_"), "no metrics");
    all->Look(reply.body, "", "the metrics");
    ++*scrapes;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

void RunAll(Canaries* all, int open, int http) {
  std::atomic<bool> over{false};
  std::atomic<int64_t> scrapes{0};
  std::thread scraper([&] { Scrape(all, &over, &scrapes); });
  std::vector<std::thread> clients;
  for (int i = 0; i < http; ++i) clients.emplace_back([all] { RunHttp(all); });
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (int i = 0; i < 8; ++i) {
    stubs.push_back(std::make_unique<grpc::GenericStub>(all->server->Connect()));
  }
  RunCalls(open, [&](int64_t index, std::function<void()> done) {
    return StartGrpc(all, *stubs[static_cast<size_t>(index) % stubs.size()], std::move(done));
  });
  for (std::thread& client : clients) client.join();
  over = true;
  scraper.join();
  all->part->Set("scrapes", scrapes.load());
}

}  // namespace

int TortureCanaries(const Arguments& arguments) {
  Part part("canaries");
  int64_t requests = 1000000;
  int open = 96, http = 8;
  FlagSet flags;
  flags.Int("requests", "N", "requests, each with a word of its own", 1, int64_t{1} << 40,
            &requests);
  flags.Int("open", "N", "gRPC calls open at once", 1, 4096, &open);
  flags.Int("http", "N", "connections by HTTP", 1, 256, &http);
  part.Parse(&flags, arguments);

  LogReader log;
  TortureServerOptions options;
  options.log_level = LogLevel::kDebug;
  options.max_model_len = 128;
  TortureServer server(options);
  Canaries all{&part, &server, requests, {}, {}, {}, {}, {}};
  RunAll(&all, open, http);
  part.Check(server.WaitIdle(), "not everything came back");
  FlushLog(1);
  log.Finish();
  part.Set("requests", all.ended.load());
  part.Set("with_own_word", all.right.load());
  part.Set("refused", all.refused.load());
  part.Set("leaked", all.leaked.load());
  part.Set("log_lines", log.lines.load());
  part.Check(all.right * 3 > all.ended, "hardly an answer held its own word");
  part.Check(log.lines * 4 > all.ended || log.lines > 1000, "the log is silent");
  part.Check(log.found == 0, "a word in the log");
  return part.Finish();
}

}  // namespace fox
