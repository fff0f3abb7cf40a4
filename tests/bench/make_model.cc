// fox-bench make-model: writes a checkpoint with random weights in the official layout, by default
// in the shape of the 760M FoX Pro. Heads are bimodal as in trained models: three of four forget
// within some ten tokens (gate bias 1), one remembers (gate bias 9). Speed and memory depend on
// little else.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "models/checkpoint/model_config.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/random_values.h"

namespace fox {
namespace {

constexpr float kForgetting = 1, kRemembering = 9;

struct ModelFlags {
  std::string dir;
  int64_t layers = 24, hidden_size = 1536, heads = 24, kv_heads = 0, vocab_size = 50277;
};

// How a tensor's values are sampled.
enum class Fill { kLinear, kNorm, kGateBias };

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  Fill fill = Fill::kLinear;

  int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

absl::Status Parse(const std::vector<std::string>& arguments, ModelFlags& values) {
  FlagSet flags;
  flags.Group("Synthetic model");
  flags.String("out", "DIR", "where to write it; made if need be", &values.dir);
  flags.Int("layers", "N", "layers", 1, 1024, &values.layers);
  flags.Int("hidden-size", "N", "width of the residual stream", 16, 1 << 16, &values.hidden_size);
  flags.Int("heads", "N", "attention heads", 1, 1024, &values.heads);
  flags.Int("kv-heads", "N", "kv heads, each of which serves as many attention heads; 0: one each",
            0, 1024, &values.kv_heads);
  flags.Int("vocab-size", "N", "tokens", 16, 1 << 20, &values.vocab_size);
  if (absl::Status s = ParseOrHelp(flags, arguments, "fox-bench make-model"); !s.ok()) return s;
  return Require(values.dir, "out");
}

std::string ConfigJson(const ModelFlags& flags) {
  const int64_t kv_heads = flags.kv_heads == 0 ? flags.heads : flags.kv_heads;
  const nlohmann::ordered_json config = {{"model_type", "forgetting_transformer-project_fox"},
                                         {"vocab_size", flags.vocab_size},
                                         {"hidden_size", flags.hidden_size},
                                         {"num_hidden_layers", flags.layers},
                                         {"num_heads", flags.heads},
                                         {"num_kv_heads", kv_heads},
                                         {"hidden_ratio", 3.5},
                                         {"intermediate_size", nullptr},
                                         {"hidden_act", "swish"},
                                         {"norm_eps", 1e-6},
                                         {"use_rope", false},
                                         {"use_output_gate", true},
                                         {"ogate_act", "sigmoid"},
                                         {"fgate_type", "full"},
                                         {"use_output_norm", true},
                                         {"qk_norm", true},
                                         {"qk_norm_share_param_across_head", false},
                                         {"use_k_shift", true},
                                         {"use_v_shift", true},
                                         {"log_pruning_tolerance", -10.0},
                                         {"tie_word_embeddings", false}};
  return config.dump(1) + "\n";
}

std::vector<Tensor> TensorsOf(const ModelConfig& c) {
  const int64_t d = c.hidden_size, heads = c.num_heads, inner = c.intermediate_size;
  const int64_t keys = c.kv_size();
  std::vector<Tensor> tensors = {{"model.embeddings.weight", {c.vocab_size, d}}};
  for (int n = 0; n < c.num_layers; ++n) {
    const std::string layer = absl::StrCat("model.layers.", n, "."), attn = layer + "attn.";
    tensors.push_back({layer + "attn_norm.weight", {d}, Fill::kNorm});
    tensors.push_back({attn + "q_proj.weight", {d, d}});
    for (const char* part : {"k_proj", "v_proj"}) {
      tensors.push_back({attn + part + ".linear.weight", {keys, d}});
      tensors.push_back({attn + part + ".shift_proj.weight", {c.num_kv_heads, d}});
    }
    tensors.push_back({attn + "o_proj.weight", {d, d}});
    tensors.push_back({attn + "ogate_proj.weight", {d, d}});
    tensors.push_back({attn + "fgate_proj.weight", {heads, d}});
    tensors.push_back({attn + "fgate_proj.bias", {heads}, Fill::kGateBias});
    tensors.push_back({attn + "q_norm.weight", {d}, Fill::kNorm});
    tensors.push_back({attn + "k_norm.weight", {keys}, Fill::kNorm});
    tensors.push_back({attn + "output_norm.weight", {d}, Fill::kNorm});
    tensors.push_back({layer + "mlp_norm.weight", {d}, Fill::kNorm});
    tensors.push_back({layer + "mlp.gate_proj.weight", {2 * inner, d}});
    tensors.push_back({layer + "mlp.down_proj.weight", {d, inner}});
  }
  tensors.push_back({"model.norm.weight", {d}, Fill::kNorm});
  tensors.push_back({"lm_head.weight", {c.vocab_size, d}});
  return tensors;
}

std::string Header(const std::vector<Tensor>& tensors) {
  nlohmann::ordered_json entries;
  int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t end = offset + tensor.size() * static_cast<int64_t>(SizeOf(DType::kBF16));
    entries[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = entries.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void FillTensor(const Tensor& tensor, uint64_t seed, BFloat16* out) {
  const int64_t count = tensor.size();
  if (tensor.fill == Fill::kLinear) return FillNormal(out, count, seed, 0, 0.02F);
  if (tensor.fill == Fill::kNorm) return FillNormal(out, count, seed, 1, 0.1F);
  std::vector<float> bias(static_cast<size_t>(count), kForgetting);
  std::fill(bias.begin() + (3 * count + 2) / 4, bias.end(), kRemembering);
  std::shuffle(bias.begin(), bias.end(), std::mt19937_64(seed));
  std::transform(bias.begin(), bias.end(), out, [](float value) { return BFloat16(value); });
}

}  // namespace

absl::Status MakeModel(const std::vector<std::string>& arguments) {
  ModelFlags flags;
  if (absl::Status s = Parse(arguments, flags); !s.ok()) return s;
  const std::string config_text = ConfigJson(flags);
  const auto config = ParseModelConfig(config_text);
  if (!config.ok()) return config.status();
  std::error_code error;
  std::filesystem::create_directories(flags.dir, error);
  std::ofstream(flags.dir + "/config.json") << config_text;
  std::ofstream out(flags.dir + "/model.safetensors", std::ios::binary);
  const std::vector<Tensor> tensors = TensorsOf(*config);
  const std::string header = Header(tensors);
  const uint64_t length = header.size();  // little-endian, as all supported machines are
  out.write(reinterpret_cast<const char*>(&length), sizeof(length))
      .write(header.data(), static_cast<std::streamsize>(length));
  std::vector<BFloat16> values;
  int64_t parameters = 0;
  for (size_t i = 0; i < tensors.size() && out; ++i) {
    values.resize(static_cast<size_t>(tensors[i].size()));
    FillTensor(tensors[i], i, values.data());
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(BFloat16)));
    parameters += tensors[i].size();
  }
  out.close();
  if (!out) return absl::UnavailableError("cannot write to " + flags.dir);
  std::printf("%s: %.0fM random parameters, bf16\n", flags.dir.c_str(),
              static_cast<double>(parameters) / 1e6);
  return absl::OkStatus();
}

}  // namespace fox
