// Random requests for golden models, run by an engine to their end. Tests of whole engines compare
// the results of different schedules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/engine_factory.h"

namespace fox {

// A model of tests/golden/, up to 1024 tokens a sequence.
EngineConfig GoldenConfig(const std::string& model);

// A golden model in a given type, with row-independent matrix products.
struct GoldenModel {
  const char* name;
  const char* dtype;
  int32_t vocab;
  AcpMode acp = AcpMode::kCertified;
};
EngineConfig GoldenConfig(const GoldenModel& model);

// Bytes of the pool that holds `tokens` unpruned tokens of the model.
int64_t PoolBytes(const EngineConfig& config, int64_t tokens);

std::vector<int32_t> RandomTokens(size_t count, int32_t vocab, std::mt19937_64& rng);
// The request of id `index` + 1: a prompt of 1 to `longest` tokens, 40 to 199 new ones, greedy.
Request RandomRequest(int index, size_t longest, int32_t vocab, std::mt19937_64& rng);

struct StreamResult {
  std::vector<SampledToken> tokens, scores;
  RequestStats stats;
};
using StreamResults = std::map<RequestId, StreamResult>;

// Adds the outputs of a step. Expects that no request fails.
void AddOutputs(const std::vector<RequestOutput>& outputs, StreamResults* results);

std::vector<int32_t> Ids(const StreamResult& result);

// Whether tokens and prompt scores are the same, each with the bits of its log-probability, its
// rank and the best tokens.
bool SameBits(const StreamResult& a, const StreamResult& b);
// Expects it; `id` names the request.
void ExpectSameBits(RequestId id, const StreamResult& got, const StreamResult& want);

// Runs all requests; `gap` steps lie between two submissions. Expects that none fails and that the
// cache of `runner`, with which the engine computes, is whole after every `audit_every` steps.
StreamResults RunStreams(Engine& engine, ModelRunner& runner, const std::vector<Request>& requests,
                         int gap, int audit_every);

struct StreamRun {
  StreamResults results;
  EngineStats stats;
};
// All requests by an engine of their own on the CPU, with one step in flight or,
// as over a GPU, two. Expects that everything comes back.
StreamRun RunEngine(const EngineConfig& config, const std::vector<Request>& requests, int gap,
                    int depth);

}  // namespace fox
