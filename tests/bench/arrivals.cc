// A thread for each request, so that arrivals never wait for the client, and a thread that polls
// the server's load.
#include "tests/bench/arrivals.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "tests/bench/measurement.h"

namespace fox {
namespace {

constexpr int kConnections = 4;
constexpr std::chrono::milliseconds kWatchInterval(5);

v1::GenerateRequest MakeRequest(const PlannedRequest& planned, const PromptSource& source) {
  v1::GenerateRequest request;
  std::mt19937_64 random(planned.seed);
  Prompt prompt(static_cast<size_t>(planned.prompt_tokens));
  if (source.text.empty()) {
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % source.vocab_size);
  } else {
    const auto first = static_cast<int64_t>(random() % source.text.size());
    prompt = TokensOfText(source.text, first, planned.prompt_tokens);
  }
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(planned.seed);
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(planned.output_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_text(false);
  request.mutable_output()->set_token_ids(true);
  request.mutable_output()->set_stream_interval(1);
  request.mutable_output()->set_perf_metrics(true);
  return request;
}

// Compares the tokens that came with the tokens of the request and of the server's count.
void CountTokens(const v1::Finish& finish, int64_t wanted, Outcome* outcome) {
  const int64_t made = finish.usage().completion_tokens();
  outcome->missing = std::max<int64_t>(0, std::max(wanted, made) - outcome->tokens);
  outcome->repeated = std::max<int64_t>(0, outcome->tokens - std::min(wanted, made));
  outcome->preemptions = static_cast<int32_t>(finish.perf().preemptions());
}

Outcome Send(grpc::Channel& channel, const v1::GenerateRequest& request, double timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout)));
  v1::Inference::Stub stub(std::shared_ptr<grpc::ChannelInterface>(&channel, [](auto*) {}));
  Outcome outcome;
  const double start = Now();
  const auto reader = stub.GenerateStream(&context, request);
  bool finished = false;
  v1::GenerateDelta message;
  while (reader->Read(&message)) {
    if (message.event_case() == v1::GenerateDelta::kFinish) {
      CountTokens(message.finish(), request.stopping().max_tokens(), &outcome);
      finished = true;
    }
    if (message.event_case() != v1::GenerateDelta::kDelta) continue;
    const double now = Now() - start;
    if (outcome.tokens == 0) {
      outcome.first_token = now;
    } else {
      outcome.gaps.push_back(now - outcome.last_token);
    }
    outcome.tokens += message.delta().token_ids_size();
    outcome.last_token = now;
  }
  outcome.code = reader->Finish().error_code();
  if (outcome.code == grpc::OK && !finished) outcome.code = grpc::DATA_LOSS;  // no last message
  outcome.total = Now() - start;
  return outcome;
}

// Polls the server's load and keeps the largest values.
void WatchLoad(const std::string& target, const std::atomic<bool>& ended, ServedArrivals* served) {
  const auto stub = v1::Info::NewStub(ConnectTo(target));
  for (v1::Load load; !ended; std::this_thread::sleep_for(kWatchInterval)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    if (!stub->GetLoad(&context, v1::GetLoadRequest(), &load).ok()) continue;
    const auto kept = static_cast<int64_t>(load.kept_pages() * load.page_bytes());
    served->most_running = std::max(served->most_running, static_cast<int64_t>(load.running()));
    served->most_kept_bytes = std::max(served->most_kept_bytes, kept);
  }
}

}  // namespace

int64_t TokenRange::Sample(std::mt19937_64& random) const {
  std::uniform_real_distribution<double> log(std::log(static_cast<double>(low)),
                                             std::log(static_cast<double>(high) + 1));
  return std::clamp(static_cast<int64_t>(std::exp(log(random))), low, high);
}

absl::StatusOr<TokenRange> ParseTokenRange(const std::string& text, const char* flag) {
  const std::vector<std::string> parts = absl::StrSplit(text, '-');
  TokenRange range;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &range.low) ||
      !absl::SimpleAtoi(parts.back(), &range.high) || range.low < 1 || range.high < range.low) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": \"", text, "\" is neither 512 nor 128-2048"));
  }
  return range;
}

std::vector<PlannedRequest> PlanArrivals(int64_t requests, double rate, const TokenRange& prompt,
                                         const TokenRange& output, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(rate);
  std::vector<PlannedRequest> plan(static_cast<size_t>(requests));
  double at = 0;
  for (PlannedRequest& request : plan) {
    request = {at, prompt.Sample(random), output.Sample(random), random()};
    at += gap(random);
  }
  return plan;
}

int64_t ServedArrivals::MostKept() const {
  std::vector<std::pair<double, int>> changes;  // time, change of the number of sequences
  for (const Outcome& outcome : outcomes) {
    if (!outcome.completed() || outcome.preemptions > 0) continue;
    changes.emplace_back(outcome.sent + outcome.first_token, 1);
    changes.emplace_back(outcome.sent + outcome.last_token, -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, now += change);
  return most;
}

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(256 << 20);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

ServedArrivals SendArrivals(const std::string& target, const std::vector<PlannedRequest>& plan,
                            const PromptSource& source, double timeout) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < kConnections; ++i) channels.push_back(ConnectTo(target));
  for (const auto& channel : channels) {
    channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5));
  }
  ServedArrivals served;
  served.outcomes.resize(plan.size());
  std::atomic<bool> ended = false;
  std::thread watch([&] { WatchLoad(target, ended, &served); });
  std::vector<std::thread> threads;
  const double start = Now();
  for (size_t i = 0; i < plan.size(); ++i) {
    const v1::GenerateRequest request = MakeRequest(plan[i], source);
    std::this_thread::sleep_for(std::chrono::duration<double>(start + plan[i].at - Now()));
    const double sent = Now() - start;
    threads.emplace_back([&, request, sent, i] {
      Outcome outcome = Send(*channels[i % channels.size()], request, timeout);
      outcome.late = sent - plan[i].at;
      outcome.sent = sent;
      served.outcomes[i] = std::move(outcome);
    });
  }
  for (std::thread& thread : threads) thread.join();
  served.seconds = Now() - start;
  ended = true;
  watch.join();
  return served;
}

}  // namespace fox
