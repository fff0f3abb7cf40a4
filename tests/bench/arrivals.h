// Arrivals: an open-loop load over real gRPC: requests arrive as a Poisson process at a given rate
// whether or not earlier ones are done, as users do. What their clients saw, and what the server
// said of itself meanwhile.
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

// Numbers of tokens, uniform in the logarithm.
struct TokenRange {
  int64_t low = 1, high = 1;

  int64_t Sample(std::mt19937_64& random) const;
};

// "512", or "128-2048". `flag` is named by an error.
absl::StatusOr<TokenRange> ParseTokenRange(const std::string& text, const char* flag);

struct PlannedRequest {
  double at = 0;  // seconds after the start
  int64_t prompt_tokens = 0, output_tokens = 0;
  uint64_t seed = 0;
};

// The same for the same arguments. `rate`: requests a second.
std::vector<PlannedRequest> PlanArrivals(int64_t requests, double rate, const TokenRange& prompt,
                                         const TokenRange& output, uint64_t seed);

// What one client saw; seconds.
struct Outcome {
  grpc::StatusCode code = grpc::OK;
  double late = 0;                                    // sent so much after its time
  double sent = 0;                                    // after the start
  double first_token = 0, last_token = 0, total = 0;  // after it was sent
  int64_t tokens = 0;
  // Tokens that it asked for or the server says that it made, but did not come; and that came
  // beside those.
  int64_t missing = 0, repeated = 0;
  int32_t preemptions = 0;
  std::vector<double> gaps;  // between messages that brought tokens

  bool completed() const { return code == grpc::OK; }
  // Before anything was done for it, and told so.
  bool refused() const { return code == grpc::RESOURCE_EXHAUSTED && tokens == 0; }
};

struct ServedArrivals {
  std::vector<Outcome> outcomes;  // as planned
  double seconds = 0;             // until the last one ended
  // Of what the server said some hundred times a second.
  int64_t most_running = 0;
  int64_t most_kept_bytes = 0;  // in pages of requests, not the prefix cache's

  // Of sequences that lost their pages at no time, the most that had got their first token and not
  // their last one at one time.
  int64_t MostKept() const;
};

// A connection of its own.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& target);

// What prompts are cut from: a text, from a random place on, else random tokens.
struct PromptSource {
  uint32_t vocab_size = 0;
  Prompt text;
};

// Sends all, and waits until all have ended. `timeout`: seconds, of a request.
ServedArrivals SendArrivals(const std::string& target, const std::vector<PlannedRequest>& plan,
                            const PromptSource& source, double timeout);

}  // namespace fox
