// ReadRope: one function for each type of scaling. Source: transformers modeling_rope_utils.py.
#include "models/checkpoint/rope_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/checkpoint/error_text.h"
#include "nlohmann/json.hpp"

namespace fox {
namespace {

// The context of training: in config.json, else among RoPE's parameters, else the model's length.
int64_t ReadTrainedContext(KeyReader& keys, KeyReader& whole, std::optional<int64_t> longest) {
  const char* key = "original_max_position_embeddings";
  KeyReader& place = whole.Find(key) != nullptr ? whole : keys;
  const std::optional<int64_t> given =
      place.OptionalInteger(key, 1, std::numeric_limits<int32_t>::max());
  if (!given && !longest) keys.Invalid(key, "is missing");
  return given.value_or(longest.value_or(1));
}

void ReadLlama3(KeyReader& keys, RopeScaling& scaling) {
  scaling.low = keys.Number("low_freq_factor", 0);
  scaling.high = keys.Number("high_freq_factor", 0);
  if (!(scaling.low > 0)) keys.Invalid("low_freq_factor", "must be above 0");
  if (!(scaling.high > scaling.low)) {
    keys.Invalid("high_freq_factor", "must be above low_freq_factor");
  }
}

// As transformers 5 computes it; 0 and null stand for a default there, too. beta_fast and beta_slow
// are numbers of turns in `scaling.context` positions.
void ReadYarn(KeyReader& keys, int head_dim, double base, RopeScaling& scaling) {
  const auto number = [&keys](const char* key, double fallback) {
    const double value = keys.OptionalNumber(key).value_or(0);
    return value == 0 ? fallback : value;
  };
  const double fast = number("beta_fast", 32), slow = number("beta_slow", 1);
  if (!(slow > 0 && slow <= fast && fast <= 1e6)) {
    keys.Invalid("beta_slow", "must be above 0, and beta_fast from there to 1e6");
  }
  if (!(base > 1)) keys.Invalid("rope_theta", "must be above 1 under yarn");
  const auto number_of_frequency = [&](double turns) {
    const double period = static_cast<double>(scaling.context) / (turns * 2 * std::numbers::pi);
    return head_dim * std::log(period) / (2 * std::log(base));
  };
  scaling.by_number = true;
  scaling.high = number_of_frequency(fast);
  scaling.low = number_of_frequency(slow);
  if (keys.Bool("truncate", true)) {
    scaling.high = std::floor(scaling.high);
    scaling.low = std::ceil(scaling.low);
  }
  scaling.high = std::max(scaling.high, 0.0);
  scaling.low = std::min(scaling.low, head_dim - 1.0);
  if (scaling.low == scaling.high) scaling.low += 0.001;
  const auto growth = [&](double scale) { return 0.1 * scale * std::log(scaling.factor) + 1; };
  const double scale = number("mscale", 0), scale_all = number("mscale_all_dim", 0);
  scaling.attention_factor =
      keys.OptionalNumber("attention_factor")
          .value_or(scale != 0 && scale_all != 0 ? growth(scale) / growth(scale_all) : growth(1));
  if (!(scaling.attention_factor >= 0.1 && scaling.attention_factor <= 10)) {
    keys.Invalid("attention_factor", "must be from 0.1 to 10");
  }
}

// Reads the scaling from `keys`, the object of RoPE's parameters. `whole`: the keys of config.json.
void ReadScaling(KeyReader& keys, KeyReader& whole, int head_dim, double base, RopeScaling& scaling,
                 std::optional<int64_t>& longest) {
  const std::string type =
      keys.Has("rope_type") ? keys.String("rope_type", "default") : keys.String("type", "default");
  if (type == "default") return;
  if (type == "dynamic" || type == "longrope" || type == "su") {
    keys.Unsupported("rope_type", Quoted(type) +
                                      " is not supported: a longer text would need "
                                      "other frequencies for the keys in the cache");
  }
  if (type != "linear" && type != "llama3" && type != "yarn") {
    keys.Unsupported("rope_type",
                     Quoted(type) + " is not supported: default, linear, llama3 or yarn");
  }
  scaling.factor = keys.Number("factor", 0);
  if (!(scaling.factor >= 1)) keys.Invalid("factor", "must be at least 1");
  if (type == "llama3") {
    ReadLlama3(keys, scaling);
    scaling.context = ReadTrainedContext(keys, whole, longest);
    return;
  }
  if (type == "yarn") {
    scaling.context = ReadTrainedContext(keys, whole, longest);
    ReadYarn(keys, head_dim, base, scaling);
    longest = scaling.context;
  }
  // As vLLM reads it, max_position_embeddings or, under yarn, the context of training is the length
  // before scaling.
  constexpr double kMax = std::numeric_limits<int32_t>::max();
  if (longest) {
    longest = static_cast<int64_t>(std::min(static_cast<double>(*longest) * scaling.factor, kMax));
  }
}

double ReadBase(KeyReader& keys, KeyReader& whole) {
  constexpr double kDefaultBase = 10000;
  const double base = (keys.Has("rope_theta") ? keys : whole).Number("rope_theta", kDefaultBase);
  if (!(base > 0)) keys.Invalid("rope_theta", "must be above 0");
  const char* partial = "partial_rotary_factor";
  if ((keys.Has(partial) ? keys : whole).OptionalNumber(partial).value_or(1) != 1) {
    keys.Unsupported(partial, "is not supported: it must be 1");
  }
  return base;
}

}  // namespace

absl::Status ReadRope(KeyReader& keys, int head_dim, double& base, RopeScaling& scaling,
                      std::optional<int64_t>& longest) {
  if (head_dim % 2 != 0) keys.Invalid("head_dim", "must be even under RoPE");
  static const nlohmann::json kNone = nlohmann::json::object();
  const nlohmann::json* chosen = &kNone;
  std::string where = "config.json";
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* found = keys.Find(name);
    if (found == nullptr) continue;
    if (!found->is_object()) keys.Invalid(name, "must be an object");
    if (!keys.status().ok()) return keys.status();
    if (found->empty()) continue;
    chosen = found;
    absl::StrAppend(&where, ": ", name);
    break;
  }
  KeyReader parameters(*chosen, where);
  for (const auto& [key, value] : chosen->items()) {
    if (!value.is_object()) continue;
    parameters.Unsupported(Printable(key), "is not supported: one RoPE serves all layers");
  }
  base = ReadBase(parameters, keys);
  ReadScaling(parameters, keys, head_dim, base, scaling, longest);
  absl::Status status = keys.status();
  status.Update(parameters.status());
  return status;
}

}  // namespace fox
