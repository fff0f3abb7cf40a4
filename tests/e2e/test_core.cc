// TestCore: see test_core.h.
#include "tests/e2e/test_core.h"

#include <chrono>
#include <thread>

#include "server/process/log.h"

namespace fox {

TestCore::TestCore(const TestCoreOptions& options) {
  ConfigureLog(LogLevel::kError, LogFormat::kText);
  ExecutorLimits limits;
  limits.num_pages = 4096;
  limits.lists_per_slot = 2;
  limits.max_num_seqs = options.max_num_seqs;
  limits.num_slots = options.max_num_seqs + 32;
  limits.max_model_len = options.max_model_len;
  limits.max_num_batched_tokens = 256;
  limits.graph_sizes = {1, 4};
  limits.max_logit_rows = 256;
  limits.page_bytes = 1024;
  limits.vocab_size = CharacterTokenizer::kVocabSize;
  executor = std::make_unique<ScriptedExecutor>(limits, script);

  ConversionContext context;
  context.engine.acp = options.acp;
  context.engine.max_num_queued_reqs = options.max_num_queued_reqs;
  context.engine.eos_token_ids = {CharacterTokenizer::kEos};
  context.limits = limits;
  context.tokenizer = options.with_tokenizer ? &tokenizer : nullptr;
  context.add_bos_to_ids = options.add_bos_to_ids;
  context.served_model_name = "scripted";
  context.max_prompt_bytes = 64 << 10;
  engine = std::make_unique<EngineThread>(std::make_unique<Engine>(context.engine, *executor));

  ModelConfig model;
  model.vocab_size = limits.vocab_size;
  model.eos_token_ids = context.engine.eos_token_ids;
  core = std::make_unique<ServerCore>(
      *engine, model, context, ServerDescription{"0.0", "", "none", "f32", "f32"}, options.limits);
}

TestCore::~TestCore() { engine->Stop(); }

bool TestCore::WaitIdle() {
  return Eventually([this] {
    const EngineStats stats = engine->stats();
    return core->Idle() && stats.running == 0 && stats.waiting == 0 &&
           stats.free_pages == stats.num_pages;
  });
}

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

v1::GenerateRequest GreedyRequest(const std::string& prompt, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

std::string ExpectedText(const std::string& prompt, int tokens) {
  int32_t last = static_cast<unsigned char>(prompt.back());
  auto position = static_cast<int64_t>(prompt.size());  // of the last prompt token, after bos
  std::string text;
  for (int i = 0; i < tokens; ++i) {
    last = ScriptedExecutor::NextToken(last, position++);
    text.push_back(static_cast<char>(last));
  }
  return text;
}

}  // namespace fox
