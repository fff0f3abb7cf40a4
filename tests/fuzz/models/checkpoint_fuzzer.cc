// A model directory of config.json and model.safetensors, two sections: it is refused, or it loads,
// and then the engine computes with it.
#include <string>
#include <vector>

#include "engine/engine_factory.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/model_folder.h"

namespace fox {
namespace {

constexpr int kMaxSteps = 8;

EngineConfig SmallEngine(const std::string& dir, AcpMode acp) {
  EngineConfig config;
  config.model_dir = dir;
  config.dtype = "f32";
  config.plain_gemm = true;
  config.threads = 1;
  config.kv_cache_bytes = 4 << 20;
  config.runner.acp = acp;
  config.runner.max_model_len = 16;
  config.runner.max_num_seqs = 1;
  config.runner.spare_slots = 0;
  config.runner.max_num_batched_tokens = 16;
  return config;
}

}  // namespace

FUZZ_TEST(checkpoint) {
  static ModelFolder folder;
  constexpr AcpMode kModes[] = {AcpMode::kOff, AcpMode::kPaper, AcpMode::kCertified};
  const AcpMode acp = kModes[in.Below(3)];
  const std::vector<std::string> files = in.Sections(2);
  folder.Write("config.json", files[0]);
  folder.Write("model.safetensors", files[1]);
  absl::StatusOr<LoadedEngine> loaded = LoadEngine(SmallEngine(folder.path(), acp));
  if (!loaded.ok()) {
    FOX_CHECK(loaded.status().message().find(folder.path()) == absl::string_view::npos);
    if (absl::IsResourceExhausted(loaded.status())) return;  // its pages alone are too many
    return CheckRefusal(loaded.status());
  }
  Request request;
  request.id = 1;
  request.prompt = {0, static_cast<int32_t>(loaded->config.vocab_size - 1), 0};
  request.sampling.temperature = 0;
  request.stop.max_tokens = 3;
  request.stop.ignore_eos = true;
  FOX_CHECK(loaded->engine->Submit(request, /*now=*/0).ok());
  for (int step = 0; step < kMaxSteps; ++step) {
    for (const RequestOutput& output : loaded->engine->Step(/*now=*/step)) {
      for (const SampledToken& token : output.tokens) {
        FOX_CHECK(token.id >= 0 && token.id < loaded->config.vocab_size);
      }
      if (!output.finish.has_value()) continue;
      // Weights that are finite may still be so large that a logit is not.
      FOX_CHECK(output.finish->status.ok() || absl::IsInternal(output.finish->status));
      FOX_CHECK(loaded->engine->stats().running == 0 && loaded->engine->fatal().ok());
      return;
    }
  }
  FOX_CHECK(false && "the request never ends");
}

}  // namespace fox
