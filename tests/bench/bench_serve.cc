// fox-bench serve: an open-loop load generator over real gRPC: requests arrive as a Poisson process
// at a given rate whether or not earlier ones are done, as users do. Reports what a client sees:
// time to the first token, time between tokens, throughput and errors, with percentiles.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/tools/eval_command.h"
#include "fox/v1/inference.grpc.pb.h"
#include "fox/v1/info.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "tests/bench/commands.h"
#include "tests/bench/measurement.h"

namespace fox {
namespace {

constexpr int kConnections = 4;

// "512", or "128-2048": uniform in the logarithm.
struct Lengths {
  int64_t low = 1, high = 1;

  int64_t Sample(std::mt19937_64& random) const {
    std::uniform_real_distribution<double> log(std::log(static_cast<double>(low)),
                                               std::log(static_cast<double>(high) + 1));
    return std::clamp(static_cast<int64_t>(std::exp(log(random))), low, high);
  }
};

struct Flags {
  std::string target = "127.0.0.1:50051", rates = "1,2,4", json;
  std::string prompt = "256-4096", output = "32-512";
  int64_t requests = 64, seed = 1;
  double timeout_s = 120;
  Lengths prompt_tokens, output_tokens;
};

struct PlannedRequest {
  double at = 0;  // seconds after the start
  int64_t prompt_tokens = 0, output_tokens = 0;
  uint64_t seed = 0;
};

// What one client saw; seconds.
struct Outcome {
  grpc::StatusCode code = grpc::OK;
  double late = 0;  // sent so much after its time
  double first_token = 0, total = 0;
  int64_t tokens = 0;
  std::vector<double> gaps;  // between messages that brought tokens
};

absl::StatusOr<Lengths> ParseLengths(const std::string& text, const char* flag) {
  const std::vector<std::string> parts = absl::StrSplit(text, '-');
  Lengths lengths;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &lengths.low) ||
      !absl::SimpleAtoi(parts.back(), &lengths.high) || lengths.low < 1 ||
      lengths.high < lengths.low) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": \"", text, "\" is neither 512 nor 128-2048"));
  }
  return lengths;
}

absl::Status Parse(const std::vector<std::string>& arguments, Flags& values) {
  FlagSet flags;
  flags.Group("Load");
  flags.String("target", "HOST:PORT", "a server on this machine", &values.target);
  flags.String("rates", "LIST", "requests a second, one run each", &values.rates);
  flags.Int("requests", "N", "requests of one run", 1, 10000, &values.requests);
  flags.String("prompt-tokens", "N|A-B", "prompt lengths", &values.prompt);
  flags.String("output-tokens", "N|A-B", "answer lengths", &values.output);
  flags.Double("timeout", "SECONDS", "deadline of a request", 0.1, 3600, &values.timeout_s);
  flags.Int("seed", "N", "of arrivals, lengths and tokens", 0, 1 << 30, &values.seed);
  flags.String("json", "FILE", "writes all rows there", &values.json);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-bench serve"); !s.ok()) return s;
  const auto prompt = ParseLengths(values.prompt, "prompt-tokens");
  if (!prompt.ok()) return prompt.status();
  const auto output = ParseLengths(values.output, "output-tokens");
  if (!output.ok()) return output.status();
  values.prompt_tokens = *prompt, values.output_tokens = *output;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> ParseRates(const std::string& text) {
  std::vector<double> rates;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (!absl::SimpleAtod(part, &rates.emplace_back()) || !(rates.back() > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rates: \"", text, "\" is not a list such as 1,2,4"));
    }
  }
  return rates;
}

std::vector<PlannedRequest> PlanArrivals(const Flags& flags, double rate) {
  std::mt19937_64 random(static_cast<uint64_t>(flags.seed));
  std::exponential_distribution<double> gap(rate);
  std::vector<PlannedRequest> plan(static_cast<size_t>(flags.requests));
  double at = 0;
  for (PlannedRequest& request : plan) {
    request = {at, flags.prompt_tokens.Sample(random), flags.output_tokens.Sample(random),
               random()};
    at += gap(random);
  }
  return plan;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(256 << 20);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

v1::GenerateRequest MakeRequest(const PlannedRequest& planned, uint32_t vocab_size) {
  v1::GenerateRequest request;
  std::mt19937_64 random(planned.seed);
  auto* ids = request.mutable_token_ids()->mutable_ids();
  ids->Reserve(static_cast<int>(planned.prompt_tokens));
  for (int64_t i = 0; i < planned.prompt_tokens; ++i) {
    ids->Add(static_cast<uint32_t>(random() % vocab_size));
  }
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(planned.seed);
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(planned.output_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_text(false);
  request.mutable_output()->set_token_ids(true);
  request.mutable_output()->set_stream_interval(1);
  return request;
}

Outcome Send(grpc::Channel& channel, const v1::GenerateRequest& request, double timeout_s) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout_s)));
  v1::Inference::Stub stub(std::shared_ptr<grpc::ChannelInterface>(&channel, [](auto*) {}));
  Outcome outcome;
  const double start = Now();
  double last = start;
  const auto reader = stub.GenerateStream(&context, request);
  v1::GenerateDelta message;
  while (reader->Read(&message)) {
    if (message.event_case() != v1::GenerateDelta::kDelta) continue;
    const double now = Now();
    if (outcome.tokens == 0) {
      outcome.first_token = now - start;
    } else {
      outcome.gaps.push_back(now - last);
    }
    outcome.tokens += message.delta().token_ids_size();
    last = now;
  }
  outcome.code = reader->Finish().error_code();
  outcome.total = Now() - start;
  return outcome;
}

// One thread a request: the client must never be what waits.
std::vector<Outcome> Run(const Flags& flags, const std::vector<PlannedRequest>& plan,
                         uint32_t vocab_size, double* duration) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < kConnections; ++i) channels.push_back(Connect(flags.target));
  for (const auto& channel : channels) {
    channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5));
  }
  std::vector<Outcome> outcomes(plan.size());
  std::vector<std::thread> threads;
  const double start = Now();
  for (size_t i = 0; i < plan.size(); ++i) {
    const v1::GenerateRequest request = MakeRequest(plan[i], vocab_size);
    std::this_thread::sleep_for(std::chrono::duration<double>(start + plan[i].at - Now()));
    const double late = Now() - start - plan[i].at;
    threads.emplace_back([&flags, &outcomes, &channels, request, late, i] {
      outcomes[i] = Send(*channels[i % channels.size()], request, flags.timeout_s);
      outcomes[i].late = late;
    });
  }
  for (std::thread& thread : threads) thread.join();
  *duration = Now() - start;
  return outcomes;
}

nlohmann::ordered_json Percentiles(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1,
                           static_cast<size_t>(share * static_cast<double>(values.size())))];
  };
  return {{"p50", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", values.back()}};
}

double P(const nlohmann::ordered_json& percentiles, const char* name) {
  return percentiles.is_null() ? NAN : 1e3 * percentiles[name].get<double>();
}

void Report(BenchReport& report, double rate, const std::vector<Outcome>& outcomes,
            int64_t prompt_tokens, double duration) {
  std::vector<double> first, gaps, total, late;
  std::map<int, int> errors;
  int64_t tokens = 0;
  for (const Outcome& outcome : outcomes) {
    late.push_back(outcome.late);
    tokens += outcome.tokens;
    if (outcome.code != grpc::OK) {
      ++errors[outcome.code];
      continue;
    }
    first.push_back(outcome.first_token);
    total.push_back(outcome.total);
    gaps.insert(gaps.end(), outcome.gaps.begin(), outcome.gaps.end());
  }
  auto failed = nlohmann::ordered_json::object();
  for (const auto& [code, count] : errors) failed[absl::StrCat("grpc_", code)] = count;
  const auto ttft = Percentiles(first), itl = Percentiles(gaps);
  const auto completed = static_cast<int64_t>(first.size());
  report.Row(absl::StrFormat("%8.2f %6d %6d %9.1f %11.1f %9.1f %9.1f %9.1f %8.2f %8.2f %8.2f", rate,
                             completed, static_cast<int64_t>(outcomes.size()) - completed, duration,
                             static_cast<double>(tokens) / duration, P(ttft, "p50"), P(ttft, "p90"),
                             P(ttft, "p99"), P(itl, "p50"), P(itl, "p90"), P(itl, "p99")),
             {{"bench", "serve"},
              {"rate", rate},
              {"completed", completed},
              {"errors", failed},
              {"seconds", duration},
              {"requests_per_second", static_cast<double>(completed) / duration},
              {"prompt_tokens_per_second", static_cast<double>(prompt_tokens) / duration},
              {"output_tokens_per_second", static_cast<double>(tokens) / duration},
              {"time_to_first_token", ttft},
              {"inter_token_latency", itl},
              {"end_to_end", Percentiles(total)},
              {"sent_late", Percentiles(late)}});
}

absl::StatusOr<uint32_t> AskVocabulary(const Flags& flags, BenchReport& report) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ModelInfo info;
  const grpc::Status status = v1::Info::NewStub(Connect(flags.target))
                                  ->GetModelInfo(&context, v1::GetModelInfoRequest(), &info);
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat(flags.target, ": ", status.error_message()));
  }
  report.facts() = {{"target", flags.target},
                    {"prompt_tokens", flags.prompt},
                    {"output_tokens", flags.output},
                    {"requests", flags.requests},
                    {"seed", flags.seed}};
  return static_cast<uint32_t>(info.vocab_size());
}

}  // namespace

absl::Status BenchServe(const std::vector<std::string>& arguments) {
  Flags flags;
  if (absl::Status s = Parse(arguments, flags); !s.ok()) return s;
  const auto rates = ParseRates(flags.rates);
  if (!rates.ok()) return rates.status();
  BenchReport report;
  const auto vocab_size = AskVocabulary(flags, report);
  if (!vocab_size.ok()) return vocab_size.status();
  report.Section("Serving: Poisson arrivals over gRPC",
                 "  rate/s     ok failed  seconds    tokens/s  TTFT p50       p90       p99  ITL "
                 "p50      p90      p99 (ms)");
  for (double rate : *rates) {
    const std::vector<PlannedRequest> plan = PlanArrivals(flags, rate);
    double duration = 0;
    const std::vector<Outcome> outcomes = Run(flags, plan, *vocab_size, &duration);
    int64_t prompt_tokens = 0;
    for (const PlannedRequest& request : plan) prompt_tokens += request.prompt_tokens;
    Report(report, rate, outcomes, prompt_tokens, duration);
  }
  return report.Write(flags.json);
}

}  // namespace fox
