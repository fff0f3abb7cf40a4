// TestCore: a server without its ports: engine over a ScriptedExecutor, and core. TestServer adds
// them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fox/v1/inference.pb.h"
#include "server/calls/server_core.h"
#include "tests/e2e/character_tokenizer.h"
#include "tests/e2e/scripted_executor.h"

namespace fox {

struct TestCoreOptions {
  int32_t max_num_seqs = 4;
  int64_t max_model_len = 4096;
  int32_t max_num_batched_tokens = 256;
  int64_t num_pages = 4096;
  int64_t max_num_queued_reqs = 64;
  double max_queue_seconds = 120;
  bool with_tokenizer = true, with_chat = false;
  bool add_bos_to_ids = false;
  AcpMode acp = AcpMode::kCertified;
  std::vector<StepObserver*> observers;
  ServerLimits limits;
};

class TestCore {
 public:
  explicit TestCore(const TestCoreOptions& options = {});
  ~TestCore();

  // Waits until nothing runs, no call is open and every page is free; false after `seconds`.
  bool WaitIdle(double seconds = 10);

  std::shared_ptr<ExecutorScript> script = std::make_shared<ExecutorScript>();
  CharacterTokenizer tokenizer;
  const ChatFormat chat = tokenizer.Chat();
  const std::unique_ptr<GrammarCompiler> grammars =
      GrammarCompiler::Create(tokenizer, CharacterTokenizer::kVocabSize, {});
  std::unique_ptr<ScriptedExecutor> executor;
  std::unique_ptr<EngineThread> engine;
  std::unique_ptr<ServerCore> core;
};

// Waits until `condition` holds; false after `seconds`.
bool Eventually(const std::function<bool()>& condition, double seconds = 10);
// A request for `max_tokens` greedy tokens after `prompt`.
v1::GenerateRequest GreedyRequest(const std::string& prompt, uint32_t max_tokens);
// What the scripted executor generates after bos and `prompt`.
std::string ExpectedText(const std::string& prompt, size_t tokens);

}  // namespace fox
