// TestCore: see test_core.h.
#include "tests/e2e/test_core.h"

#include <chrono>
#include <thread>

#include "server/process/log.h"

namespace fox {

TestCore::TestCore(const TestCoreOptions& options) {
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  ExecutorLimits limits;
  limits.num_pages = options.num_pages;
  limits.lists_per_slot = 2;
  limits.max_num_seqs = options.max_num_seqs;
  limits.num_slots = options.max_num_seqs + 32;
  limits.max_model_len = options.max_model_len;
  limits.max_num_batched_tokens = options.max_num_batched_tokens;
  limits.graph_sizes = {1, 4};
  limits.max_logit_rows = options.max_num_batched_tokens;
  limits.page_bytes = 1024;
  limits.vocab_size = CharacterTokenizer::kVocabSize;
  executor = std::make_unique<ScriptedExecutor>(limits, script);

  ConversionContext context;
  context.engine.acp = options.acp;
  context.engine.max_num_queued_reqs = options.max_num_queued_reqs;
  context.engine.max_queue_seconds = options.max_queue_seconds;
  context.engine.eos_token_ids = {CharacterTokenizer::kEos};
  context.limits = limits;
  context.tokenizer = options.with_tokenizer ? &tokenizer : nullptr;
  context.chat = options.with_chat ? &chat : nullptr;
  context.grammars = grammars.get();
  context.add_bos_to_ids = options.add_bos_to_ids;
  context.served_model_name = "scripted";
  context.max_prompt_bytes = 64 << 10;
  engine = std::make_unique<EngineThread>(
      std::make_unique<Engine>(context.engine, *executor, options.observers));

  ModelConfig model;
  model.vocab_size = limits.vocab_size;
  model.eos_token_ids = context.engine.eos_token_ids;
  core = std::make_unique<ServerCore>(
      *engine, model, context, ServerDescription{"0.0", "", "none", "f32", "f32"}, options.limits);
}

TestCore::~TestCore() { engine->Stop(); }

bool TestCore::WaitIdle(double seconds) {
  const auto idle = [this] {
    const EngineStats stats = engine->stats();
    return core->Idle() && core->calls().calls() == 0 && stats.running == 0 && stats.waiting == 0 &&
           stats.free_pages == stats.num_pages;
  };
  return Eventually(idle, seconds);
}

bool Eventually(const std::function<bool()>& condition, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

v1::GenerateRequest GreedyRequest(const std::string& prompt, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

std::string ExpectedText(const std::string& prompt, size_t tokens) {
  ScriptedText script(prompt);
  std::string text;
  while (text.size() < tokens) text.push_back(script.Take());
  return text;
}

}  // namespace fox
