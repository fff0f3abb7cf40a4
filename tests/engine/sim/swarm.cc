// Swarm: the random choices of a seed. Read swarm.h first.
#include "tests/engine/sim/swarm.h"

#include <algorithm>
#include <cmath>

#include "tests/engine/sim/paged_keys.h"

namespace fox::sim {
namespace {

void ChooseExecutor(Random& random, Swarm* swarm) {
  ExecutorLimits& limits = swarm->executor.limits;
  limits.lists_per_slot = random.Int(1, 16);
  limits.max_num_seqs = static_cast<int32_t>(random.Int(1, 12));
  limits.num_slots = static_cast<int32_t>(random.Int(0, 16));
  limits.max_model_len = random.Chance(0.2) ? random.Int(20, 130) : random.Int(130, 1000);
  const int64_t whole = limits.lists_per_slot * PagesFor(limits.max_model_len);
  limits.num_pages =
      random.Chance(0.5) ? random.Int(limits.lists_per_slot, whole) : random.Int(whole, 3 * whole);
  limits.max_num_batched_tokens = random.Chance(0.2) ? random.Int(1, 40) : random.Int(64, 600);
  limits.max_logit_rows = random.Chance(0.3) ? random.Int(1, 10) : random.Int(10, 64);
  limits.vocab_size = static_cast<int32_t>(random.Int(8, 24));
  limits.depth = random.Chance(0.3) ? 1 : random.Chance(0.8) ? 2 : 3;
  limits.samples_on_device = limits.scores = random.Chance(0.8);
  if (random.Chance(0.1)) swarm->executor.understated_pages = random.Int(1, limits.num_pages);
  if (random.Chance(0.9)) {
    swarm->executor.min_window = random.Chance(0.2) ? 2 : 1;
    swarm->executor.max_window = swarm->executor.min_window + static_cast<int>(random.Int(0, 1));
  }
  if (random.Chance(0.1)) swarm->executor.fail_at_run = random.Int(0, 1000);
  swarm->executor.fail_late = random.Chance(0.5);
  swarm->executor.nan_position = random.Int(0, limits.max_model_len);
}

void ChooseEngine(Random& random, Swarm* swarm) {
  EngineOptions& engine = swarm->engine;
  engine.max_num_queued_reqs = random.Int(1, 30);
  engine.max_num_queued_tokens =
      random.Chance(0.2) ? swarm->executor.limits.max_model_len : 1 << 20;
  engine.priority_scheduling = random.Chance(0.5);
  engine.max_queue_seconds = random.Chance(0.3) ? random.Unit() * 100 : 0;
  engine.stall_timeout = random.Chance(0.5) ? random.Unit() * 20 : 0;
  engine.max_paused_reqs = random.Chance(0.3) ? random.Int(0, 8) : random.Int(8, 60);
  engine.max_step_seconds = random.Chance(0.4) ? random.Unit() : 0;
  if (random.Chance(0.05)) engine.acp = AcpMode::kOff;
  if (random.Chance(0.5)) engine.eos_token_ids = {2};
}

void ChooseClients(Random& random, Swarm* swarm) {
  const ExecutorLimits& limits = swarm->executor.limits;
  swarm->submit = random.Unit() * 0.2 + 0.02;
  swarm->step = random.Unit() * 0.6 + 0.2;
  swarm->acknowledge = random.Unit() * 0.4;
  if (random.Chance(0.6)) swarm->cancel = random.Unit() * 0.1;
  if (random.Chance(0.4)) swarm->deadlines = random.Unit();
  if (random.Chance(0.6)) swarm->windows = random.Chance(0.6) ? 1 : random.Unit();
  if (random.Chance(0.5)) swarm->sampled = random.Unit();
  if (random.Chance(0.3)) swarm->scored = random.Unit() * 0.1;
  if (random.Chance(0.3)) swarm->penalties = random.Unit() * 0.5;
  if (random.Chance(0.3)) swarm->biased = random.Unit() * 0.5;
  if (random.Chance(0.3)) swarm->unpruned = random.Unit() * 0.5;
  if (random.Chance(0.3)) swarm->reports = random.Unit();
  if (random.Chance(0.3)) swarm->groups = random.Unit() * 0.5;
  // Without pruning a prompt may also be out of range.
  if (random.Chance(0.5) && swarm->engine.acp != AcpMode::kOff) swarm->invalid = 0.05;
  if (random.Chance(0.2)) swarm->nan = 0.1;
  if (random.Chance(0.3)) swarm->stalls = 0.002;
  if (random.Chance(0.3)) swarm->burst = static_cast<int>(random.Int(2, 12));
  if (random.Chance(0.2)) swarm->cancel_all = 1;
  if (random.Chance(0.2)) swarm->flood = 1;
  swarm->long_prompts = random.Chance(0.3) ? 0.1 : random.Unit();
  swarm->short_prompt = random.Int(1, limits.max_model_len - 1);
  swarm->long_prompt = limits.max_model_len - 1;
  swarm->max_tokens = random.Chance(0.6) ? random.Int(1, 12) : random.Int(1, 80);
  swarm->flow_window = random.Int(1, 6);
  swarm->priorities = static_cast<int>(random.Int(1, 4));
  swarm->clients = static_cast<int>(random.Int(1, 5));
  swarm->tick = random.Chance(0.5) ? 0.01 : 0.2;
  swarm->step_seconds = random.Chance(0.5) ? 0 : random.Unit() * 0.05;
  swarm->token_seconds = random.Chance(0.5) ? 0 : random.Unit() * 0.001;
}

// Readers that fall behind again and again, over few slots and pages: newcomers take the pages of
// paused ones.
void ChooseSlowReaders(Random& random, Swarm* swarm) {
  ExecutorLimits& limits = swarm->executor.limits;
  limits.max_num_seqs = static_cast<int32_t>(random.Int(4, 16));
  limits.num_slots = limits.max_num_seqs + static_cast<int32_t>(random.Int(0, 2));
  limits.max_num_batched_tokens = random.Int(300, 2000);
  limits.max_logit_rows = 64;
  swarm->engine.max_paused_reqs = random.Int(20, 100);
  swarm->engine.stall_timeout = random.Chance(0.6) ? 0 : 5 + random.Unit() * 15;
  swarm->engine.max_step_seconds = 0;
  swarm->windows = 1;
  swarm->flow_window = random.Int(1, 4);
  swarm->max_tokens = random.Int(20, 80);
  swarm->submit = random.Unit() * 0.03 + 0.01;
  swarm->acknowledge = random.Unit() * 0.4 + 0.3;
  swarm->step = random.Unit() * 0.2 + 0.1;
  swarm->cancel *= 0.2;
  if (random.Chance(0.7)) swarm->deadlines = 0;
  swarm->invalid *= 0.2;
}

// Prompts that begin alike, alone and in bursts; conversations of several turns.
void ChooseSharing(Random& random, Swarm* swarm) {
  ExecutorLimits& limits = swarm->executor.limits;
  limits.snapshot_slots = static_cast<int32_t>(random.Int(1, 12));
  limits.max_model_len = std::max<int64_t>(limits.max_model_len, 200);
  swarm->long_prompt = limits.max_model_len - 1;
  swarm->engine.prefix_cache_share = random.Chance(0.3) ? random.Unit() * 0.1 : random.Unit();
  swarm->engine.prefix_cache_interval = kPageTokens * random.Int(1, 8);
  swarm->texts.resize(static_cast<size_t>(random.Int(1, 4)));
  for (auto& text : swarm->texts) {
    int64_t length = random.Int(kPageTokens, swarm->long_prompt);
    if (random.Chance(0.5)) length = length / kPageTokens * kPageTokens;
    text.resize(static_cast<size_t>(length));
    for (int32_t& token : text) {
      token = static_cast<int32_t>(random.Int(0, limits.vocab_size - 1));
    }
  }
  swarm->texts_known = random.Unit();
  swarm->turns = random.Chance(0.5) ? random.Unit() * 0.6 : 0;
  swarm->groups = std::max(swarm->groups, random.Chance(0.5) ? 0.2 : 0.0);
  if (random.Chance(0.5)) swarm->burst = static_cast<int>(random.Int(2, 12));
  if (random.Chance(0.3)) swarm->salted = random.Unit();
  if (random.Chance(0.3)) swarm->bypasses = random.Unit() * 0.5;
  if (random.Chance(0.3)) swarm->flushes = random.Unit() * 0.02;
}

// A store that is slow or fails, with buffers for all snapshots or only for short ones. Few
// snapshots fit beside each other, so that some leave and come back.
void ChooseStore(Random& random, Swarm* swarm) {
  ExecutorLimits& limits = swarm->executor.limits;
  const int64_t whole = limits.lists_per_slot * PagesFor(limits.max_model_len);
  SetStaging(static_cast<int32_t>(random.Int(1, 3)),
             random.Chance(0.7) ? whole : random.Int(1, whole), &limits);
  limits.snapshot_slots = static_cast<int32_t>(random.Int(1, 4));
  swarm->engine.min_stored_tokens = kPageTokens;
  swarm->store_seed = random.Next();
  swarm->store_faults = random.Chance(0.5) ? 0 : random.Unit() * 0.5;
  swarm->store_delays = random.Chance(0.3) ? 0 : random.Unit();
}

// One client sends most requests, whose answers are long. Pages, tokens and rows are enough for all
// slots, and all prompts of a step fit into it.
void ChooseSlots(Random& random, Swarm* swarm) {
  ExecutorLimits& limits = swarm->executor.limits;
  swarm->only_slots = true;
  limits.max_num_seqs = static_cast<int32_t>(random.Int(2, 8));
  limits.num_slots = limits.max_num_seqs + static_cast<int32_t>(random.Int(0, 8));
  limits.snapshot_slots = 0;
  limits.max_model_len = 260;
  limits.num_pages =
      limits.lists_per_slot * (PagesFor(limits.max_model_len) + 1) * (limits.slots() + 2);
  limits.max_num_batched_tokens = 2000;
  limits.max_logit_rows = 200;
  limits.prefill_tokens_per_decode = 0;
  swarm->executor.understated_pages = 0;
  swarm->engine.priority_scheduling = false;
  swarm->engine.max_step_seconds = 0;
  swarm->engine.max_num_queued_reqs = 30;
  swarm->texts.clear();
  swarm->windows = swarm->scored = swarm->deadlines = swarm->turns = 0;
  swarm->long_prompts = 0;
  swarm->long_prompt = limits.max_model_len - 1;
  swarm->short_prompt = 60;
  swarm->max_tokens = random.Int(20, 200);
  swarm->clients = static_cast<int>(random.Int(2, limits.max_num_seqs));
}

// A text, mostly to its end, then mostly tokens of its own.
void BeginAlike(const Swarm& swarm, Random& random, Request* request) {
  const auto last = static_cast<int64_t>(swarm.texts.size()) - 1;
  const std::vector<int32_t>& text = swarm.texts[static_cast<size_t>(random.Int(0, last))];
  auto shared = static_cast<int64_t>(text.size());
  if (random.Chance(0.3)) shared = random.Int(1, shared);
  auto own = static_cast<int64_t>(request->prompt.size());
  if (random.Chance(0.7)) own = std::min<int64_t>(own, random.Int(1, kPageTokens));
  if (random.Chance(0.2)) own = 0;
  own = std::min(own, swarm.executor.limits.max_model_len - 1 - shared);
  request->prompt.resize(static_cast<size_t>(std::max<int64_t>(own, 0)));
  request->prompt.insert(request->prompt.begin(), text.begin(), text.begin() + shared);
}

void ChooseSampling(const Swarm& swarm, Random& random, SamplingParams* sampling) {
  sampling->temperature = random.Chance(swarm.sampled) ? 1.0f : 0.0f;
  sampling->seed = random.Next() >> 34;
  if (random.Chance(0.3)) sampling->top_k = 5;
  if (random.Chance(swarm.scored)) {
    sampling->prompt_logprobs = static_cast<int32_t>(random.Int(-1, 3));
    sampling->logprobs = static_cast<int32_t>(random.Int(-1, 3));
  }
  if (random.Chance(swarm.penalties)) {
    if (random.Chance(0.7)) sampling->repetition_penalty = 2.0f;
    if (random.Chance(0.7)) sampling->presence_penalty = 0.5f;
    if (random.Chance(0.7)) sampling->frequency_penalty = 0.25f;
  }
  if (random.Chance(swarm.biased)) {
    if (random.Chance(0.5)) sampling->logit_bias = {{3, 2.0f}};
    if (random.Chance(0.5)) sampling->allowed_token_ids = {0, 3, 4, 5};
    if (random.Chance(0.5)) sampling->logprob_token_ids = {6};
  }
}

// Limits of an executor whose bits depend on chunks: steps with room for the smallest chunk, mostly
// beside decodes of all other sequences.
void ChooseChunks(Random& random, int64_t multiple, Swarm* swarm) {
  ExecutorLimits& limits = swarm->executor.limits;
  if (multiple == 0) {
    multiple = random.Chance(0.5) ? 1 : random.Chance(0.4) ? 64 : 128;
    if (random.Chance(0.4)) limits.prefill_tokens_per_decode = random.Int(1, 25);
  }
  if (multiple == 1) return;
  limits.chunks = {multiple, /*fixed=*/true};
  const int64_t others = random.Chance(0.8) ? limits.max_num_seqs - 1 : 0;
  const int64_t least = limits.chunks.min_room() + others;
  limits.max_num_batched_tokens = std::max(limits.max_num_batched_tokens, least);
  limits.max_logit_rows = std::max(limits.max_logit_rows, least);
}

}  // namespace

Swarm MakeSwarm(Random& random, int64_t chunk_multiple) {
  Swarm swarm;
  ChooseExecutor(random, &swarm);
  ChooseEngine(random, &swarm);
  ChooseClients(random, &swarm);
  if (random.Chance(0.45)) ChooseSlowReaders(random, &swarm);
  if (random.Chance(0.3)) swarm.engine.kv_admission = KvAdmission::kWorstCase;
  // In two draws, so that the days that failed once do not change.
  if (random.Chance(0.8) && random.Chance(0.5)) ChooseSharing(random, &swarm);
  // Draws of a choice that there is no more, for the same reason.
  if (random.Chance(0.6)) {
    if (!random.Chance(0.3)) random.Int(0, 1);
    random.Chance(0.7);
  }
  ChooseChunks(random, chunk_multiple, &swarm);
  if (random.Chance(0.15)) ChooseSlots(random, &swarm);
  if (swarm.executor.limits.snapshot_slots > 0 && random.Chance(0.7)) ChooseStore(random, &swarm);
  return swarm;
}

Request MakeRequest(const Swarm& swarm, Seconds now, Random& random) {
  const ExecutorLimits& limits = swarm.executor.limits;
  Request request;
  const int64_t longest =
      random.Chance(swarm.long_prompts) ? swarm.long_prompt : swarm.short_prompt;
  const int64_t length = random.Int(1, longest);
  request.prompt.reserve(static_cast<size_t>(length));
  uint64_t bits = 0;
  for (int64_t i = 0; i < length; ++i, bits >>= 8) {
    if (i % 8 == 0) bits = random.Next();
    request.prompt.push_back(
        static_cast<int32_t>((bits & 255) * static_cast<uint64_t>(limits.vocab_size) >> 8));
  }
  ChooseSampling(swarm, random, &request.sampling);
  request.stop.max_tokens = static_cast<int32_t>(random.Int(0, swarm.max_tokens));
  if (random.Chance(0.3)) {
    request.stop.min_tokens = static_cast<int32_t>(random.Int(0, request.stop.max_tokens));
  }
  if (random.Chance(0.3)) request.stop.stop_token_ids = {1};
  request.stop.ignore_eos = random.Chance(0.3);
  request.priority = static_cast<int32_t>(random.Int(0, swarm.priorities - 1));
  request.client = static_cast<uint64_t>(random.Int(0, swarm.clients - 1));
  if (swarm.only_slots && random.Chance(0.7)) request.client = 0;
  const double pace = swarm.tick + 10 * swarm.step_seconds;
  if (random.Chance(swarm.deadlines)) request.deadline = now + 20 * pace * random.Unit();
  if (random.Chance(swarm.deadlines)) request.queue_deadline = now + 5 * pace * random.Unit();
  if (random.Chance(swarm.windows)) {
    request.flow_window = static_cast<int32_t>(random.Int(1, swarm.flow_window));
  }
  if (random.Chance(swarm.unpruned)) {
    request.log_tolerance = random.Chance(0.5) ? kNoMass : swarm.engine.log_tolerance - 2;
  }
  request.report_windows = random.Chance(swarm.reports);
  if (!swarm.texts.empty()) {
    if (random.Chance(swarm.texts_known)) BeginAlike(swarm, random, &request);
    if (random.Chance(swarm.salted)) request.cache_salt.assign(1, random.Chance(0.5) ? 'a' : 'b');
    request.bypass_prefix_cache = random.Chance(swarm.bypasses);
  }
  return request;
}

absl::StatusCode SpoilRequest(const Swarm& swarm, Random& random, Request* request) {
  switch (random.Int(0, 9)) {
    case 0:
      request->prompt.clear();
      break;
    case 1:
      request->prompt.assign(static_cast<size_t>(swarm.executor.limits.max_model_len), 1);
      return absl::StatusCode::kOutOfRange;
    case 2:
      request->prompt.back() = random.Chance(0.5) ? -1 : swarm.executor.limits.vocab_size;
      break;
    case 3:
      request->sampling.temperature = std::nanf("");
      break;
    case 4:
      request->sampling.top_p = random.Chance(0.5) ? -0.5f : 2.0f;
      break;
    case 5:
      request->stop.min_tokens = request->stop.max_tokens + 1;
      break;
    case 6:
      request->flow_window = -1;
      break;
    case 7:
      request->deadline = std::nan("");
      break;
    case 8:
      request->log_tolerance = 0.0;
      break;
    default:
      request->sampling.logprob_token_ids = {-7};
      break;
  }
  return absl::StatusCode::kInvalidArgument;
}

}  // namespace fox::sim
