// Arrivals: an open-loop load over real gRPC. Requests arrive as a Poisson process at a given rate,
// as those of independent users do: no request waits for an earlier one. Records the clients' view
// of each request and the load that the server reported meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/status_code_enum.h"
#include "tests/bench/run_requests.h"

namespace fox {

// A range of token counts, sampled uniformly in the logarithm.
struct TokenRange {
  int64_t low = 1, high = 1;

  int64_t Sample(std::mt19937_64& random) const;
};

// Parses "512" or "128-2048". Errors name `flag`.
absl::StatusOr<TokenRange> ParseTokenRange(const std::string& text, const char* flag);

struct PlannedRequest {
  double at = 0;  // seconds after the start
  int64_t prompt_tokens = 0, output_tokens = 0;
  uint64_t seed = 0;
};

// Equal arguments give equal plans. `rate`: requests a second.
std::vector<PlannedRequest> PlanArrivals(int64_t requests, double rate, const TokenRange& prompt,
                                         const TokenRange& output, uint64_t seed);

// One request as its client saw it; times in seconds.
struct Outcome {
  grpc::StatusCode code = grpc::OK;
  double late = 0;                                    // time between plan and send
  double sent = 0;                                    // after the start
  double first_token = 0, last_token = 0, total = 0;  // after it was sent
  int64_t tokens = 0;
  // missing: tokens that were requested, or counted by the server, and did not arrive; repeated:
  // tokens that arrived in excess.
  int64_t missing = 0, repeated = 0;
  int32_t preemptions = 0;
  std::vector<double> gaps;  // between messages that brought tokens

  bool completed() const { return code == grpc::OK; }
  // True if the server refused the request before its first token.
  bool refused() const { return code == grpc::RESOURCE_EXHAUSTED && tokens == 0; }
};

struct ServedArrivals {
  std::vector<Outcome> outcomes;  // as planned
  double seconds = 0;             // until the last one ended
  // The largest values that the server reported; it is polled every 5 ms.
  int64_t most_running = 0;
  int64_t most_kept_bytes = 0;  // pages of requests, without the prefix cache's

  // The largest number of sequences between first and last token at one time; preempted sequences
  // are not counted.
  int64_t MostKept() const;
};

// A channel with a new connection.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& target);

// The source of prompts: parts of `text` that start at random places, or random tokens if it is
// empty.
struct PromptSource {
  uint32_t vocab_size = 0;
  Prompt text;
};

// Sends all requests and waits until all have ended. `timeout`: deadline of a request in seconds.
ServedArrivals SendArrivals(const std::string& target, const std::vector<PlannedRequest>& plan,
                            const PromptSource& source, double timeout);

}  // namespace fox
