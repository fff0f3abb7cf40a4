// ParseTokenizerJson: the parts of a tokenizer.json one by one. See bpe_definition.h.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/checkpoint/error_text.h"
#include "models/checkpoint/json_reader.h"
#include "models/tokenizer/bpe_definition.h"
#include "models/tokenizer/json_fields.h"

namespace fox {
namespace {

using Json = nlohmann::json;

// Half a million tokens with as many merges are about two million values.
constexpr JsonLimits kLimits = {size_t{64} << 20, 32, 20'000'000};
constexpr char kFile[] = "tokenizer.json";
constexpr char kPreTokenizers[] = "ByteLevel, alone or in a Sequence behind Split and Digits";
constexpr char kFallbackPreTokenizers[] =
    "with byte_fallback: Metaspace, behind it Split and Digits";

absl::Status Malformed(const std::string& what) { return InvalidFile(kFile, what); }

absl::Status Unsupported(const char* part, const std::string& kind, const char* supported = "") {
  const char* only = *supported == '\0' ? "" : "; supported: ";
  return absl::UnimplementedError(
      absl::StrCat(kFile, ": ", part, " ", Quoted(kind), " is not supported", only, supported));
}

std::string TypeOf(const Json& part) { return ReadString(&part, "type").value_or(""); }

// The steps of the part `name`: the part itself or, if it is a Sequence, its list under the key
// `list`; none if there is no such part.
absl::StatusOr<std::vector<const Json*>> StepsOf(const Json& json, const char* name,
                                                 const char* list) {
  std::vector<const Json*> steps;
  const Json* part = FindField(&json, name);
  if (part == nullptr) return steps;
  if (TypeOf(*part).empty()) return Malformed(absl::StrCat(name, " has no type"));
  if (TypeOf(*part) != "Sequence") return std::vector<const Json*>{part};
  const Json* parts = FindField(part, list);
  if (parts == nullptr || !parts->is_array()) return Malformed(absl::StrCat(name, " Sequence"));
  for (const Json& step : *parts) steps.push_back(&step);
  return steps;
}

absl::StatusOr<PretokenizerStep> ReadSplit(const Json& json) {
  constexpr std::pair<std::string_view, PretokenizerStep::Behavior> kBehaviors[] = {
      {"Removed", PretokenizerStep::Behavior::kRemoved},
      {"Isolated", PretokenizerStep::Behavior::kIsolated},
      {"MergedWithPrevious", PretokenizerStep::Behavior::kMergedWithPrevious},
      {"MergedWithNext", PretokenizerStep::Behavior::kMergedWithNext},
      {"Contiguous", PretokenizerStep::Behavior::kContiguous}};
  PretokenizerStep step;
  const Json* pattern = FindField(&json, "pattern");
  const std::string literal = ReadString(pattern, "String").value_or("");
  const std::string behavior = ReadString(&json, "behavior").value_or("");
  step.pattern = ReadString(pattern, "Regex").value_or(LiteralPattern(literal));
  if (step.pattern.empty()) return Malformed("pre_tokenizer Split without a pattern");
  const auto* named = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                   [&](const auto& entry) { return entry.first == behavior; });
  if (named == std::end(kBehaviors))
    return Unsupported("pre_tokenizer Split behavior", behavior, "those of the tokenizers package");
  step.behavior = named->second;
  step.invert = ReadFlag(json, "invert");
  return step;
}

absl::Status ReadMetaspace(const Json& step, BpeDefinition* definition) {
  using Metaspace = BpeDefinition::Metaspace;
  const std::string scheme = ReadString(&step, "prepend_scheme").value_or("always");
  definition->metaspace = scheme == "always"  ? Metaspace::kAlways
                          : scheme == "first" ? Metaspace::kFirst
                                              : Metaspace::kNotInFront;
  const std::string space = ReadString(&step, "replacement").value_or("");
  if (space != kVisibleSpace) return Unsupported("pre_tokenizer Metaspace", space, "U+2581");
  if (ReadFlag(step, "split", true)) {
    definition->pretokenizer.push_back({.pattern = LiteralPattern(kVisibleSpace),
                                        .behavior = PretokenizerStep::Behavior::kMergedWithNext});
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Json& json, BpeDefinition* definition) {
  constexpr char kDigit[] = "[\\p{N}\U00011DE0-\U00011DE9\U00016FF4-\U00016FF6]";  // Unicode 17
  const bool fallback = definition->byte_fallback;
  const char* const supported = fallback ? kFallbackPreTokenizers : kPreTokenizers;
  definition->pretokenizer.clear();
  const auto steps = StepsOf(json, "pre_tokenizer", "pretokenizers");
  if (!steps.ok()) return steps.status();
  if (steps->empty() && !fallback) return Unsupported("pre_tokenizer", "null", supported);
  for (const Json* step : *steps) {
    const std::string type = TypeOf(*step);
    if ((type == "ByteLevel") != (!fallback && step == steps->back())) {
      return Unsupported("pre_tokenizer",
                         fallback || step == steps->back() ? type : "ByteLevel and more",
                         supported);
    }
    if (type == "Split") {
      absl::StatusOr<PretokenizerStep> split = ReadSplit(*step);
      if (!split.ok()) return split.status();
      definition->pretokenizer.push_back(*std::move(split));
    } else if (type == "Digits") {
      using Behavior = PretokenizerStep::Behavior;
      const bool each = ReadFlag(*step, "individual_digits");
      definition->pretokenizer.push_back(
          {.pattern = kDigit, .behavior = each ? Behavior::kIsolated : Behavior::kContiguous});
    } else if (type == "ByteLevel") {
      const bool regex = ReadFlag(*step, "use_regex", true);
      definition->pretokenizer.push_back({.prefix_space = ReadFlag(*step, "add_prefix_space", true),
                                          .pattern = regex ? kGpt2Pattern : ""});
    } else if (type == "Metaspace" && fallback && step == steps->front()) {
      if (absl::Status s = ReadMetaspace(*step, definition); !s.ok()) return s;
    } else {
      return Unsupported("pre_tokenizer", type, supported);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizer(const Json& json, BpeDefinition* definition) {
  const auto steps = StepsOf(json, "normalizer", "normalizers");
  if (!steps.ok()) return steps.status();
  for (const Json* step : *steps) {
    const std::string type = TypeOf(*step);
    if (type == "NFC") {
      definition->nfc = true;
    } else if (!definition->byte_fallback) {
      return Unsupported("normalizer", type, "NFC");
    } else if (*step == Json{{"type", "Prepend"}, {"prepend", kVisibleSpace}}) {
      definition->prefix_space = true;
    } else if (*step == Json{{"type", "Replace"},
                             {"pattern", {{"String", " "}}},
                             {"content", kVisibleSpace}}) {
      definition->visible_spaces = true;
    } else {
      return Unsupported("normalizer", type, "NFC, Prepend and Replace of U+2581");
    }
  }
  return absl::OkStatus();
}

// The steps of the decoder of a model with fallback to bytes; Strip may be missing.
absl::Status ReadDecoder(const Json& json, BpeDefinition* definition) {
  static const auto* const kSteps = new Json(Json::parse(
      R"([{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"},
          {"type": "Strip", "content": " ", "start": 1, "stop": 0}])"));
  const Json* list = FindField(FindField(&json, "decoder"), "decoders");
  definition->byte_fallback = ReadFlag(json.at("model"), "byte_fallback") && list != nullptr &&
                              list->is_array() && list->size() > 1;
  if (!definition->byte_fallback) {
    const auto steps = StepsOf(json, "decoder", "decoders");
    if (!steps.ok()) return steps.status();
    if (steps->empty()) return Unsupported("decoder", "null", "ByteLevel");
    for (const Json* step : *steps) {
      if (TypeOf(*step) != "ByteLevel") return Unsupported("decoder", TypeOf(*step), "ByteLevel");
    }
    return steps->size() == 1 ? absl::OkStatus()
                              : Unsupported("decoder", "Sequence of several", "ByteLevel");
  }
  for (size_t i = 0; i < std::max(list->size(), kSteps->size() - 1); ++i) {
    if (i < std::min(list->size(), kSteps->size()) && list->at(i) == kSteps->at(i)) continue;
    const std::string step = i < list->size() ? list->at(i).dump() : "Sequence of two";
    return Unsupported("decoder", step,
                       "with byte_fallback: Replace of U+2581, ByteFallback, Fuse, Strip");
  }
  definition->strip_leading_space = list->size() == kSteps->size();
  if (!definition->ignore_merges) return absl::OkStatus();
  return Unsupported("option", "ignore_merges with byte_fallback");
}

absl::Status ReadMerges(const Json& model, BpeDefinition* definition) {
  const Json* merges = FindField(&model, "merges");
  if (merges == nullptr || !merges->is_array()) return Malformed("model has no merges");
  for (const Json& merge : *merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      definition->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    auto two = ReadMerge(merge.is_string() ? merge.get<std::string>() : "");
    if (!two) {
      return Malformed(absl::StrCat("merge ", definition->merges.size(), " is not two tokens"));
    }
    definition->merges.push_back(*std::move(two));
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& json, BpeDefinition* definition) {
  const Json* model = FindField(&json, "model");
  if (model == nullptr || !model->is_object()) return Malformed("no model");
  // Files of old versions leave the type of a BPE model out.
  const std::string type = ReadString(model, "type").value_or("BPE");
  if (type != "BPE") return Unsupported("model", type, "BPE");
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!ReadString(model, option).value_or("").empty()) return Unsupported("option", option);
  }
  const Json* dropout = FindField(model, "dropout");
  if (dropout != nullptr && *dropout != 0) return Unsupported("option", "dropout");
  definition->drop_unknown_bytes = FindField(model, "unk_token") == nullptr;
  definition->ignore_merges = ReadFlag(*model, "ignore_merges");
  const Json* vocab = FindField(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return Malformed("model has no vocab");
  const absl::Status status = ReadVocab(*vocab, kFile, &definition->vocab);
  return status.ok() ? ReadMerges(*model, definition) : status;
}

absl::Status ReadAddedTokens(const Json& json, AddedTokenList* added) {
  const Json* list = FindField(&json, "added_tokens");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return Malformed("added_tokens is not a list");
  for (const Json& entry : *list) {
    std::optional<AddedToken> token = ReadAddedToken(entry, kFile);
    const Json* id = FindField(&entry, "id");
    if (!token.has_value() || id == nullptr || !ReadId(*id)) return Malformed("an added token");
    added->Add(*std::move(token));
  }
  return absl::OkStatus();
}

// {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
//  "special_tokens": {"<s>": {"ids": [1]}}}
absl::Status ReadTemplate(const Json& step, BpeDefinition* definition) {
  const Json* single = FindField(&step, "single");
  if (single == nullptr || !single->is_array()) return Malformed("TemplateProcessing");
  bool behind = false;
  for (const Json& piece : *single) {
    if (!piece.is_object()) return Malformed("TemplateProcessing");
    if (piece.contains("Sequence")) {
      if (behind) return Unsupported("post_processor", "TemplateProcessing with two sequences");
      behind = true;
      continue;
    }
    const std::string name = ReadString(FindField(&piece, "SpecialToken"), "id").value_or("");
    // Not by a JSON pointer: a name of many digits is an index to it, and throws.
    const Json* ids = FindField(FindField(FindField(&step, "special_tokens"), name), "ids");
    if (ids == nullptr || !ids->is_array()) return Malformed("TemplateProcessing");
    for (const Json& entry : *ids) {
      const std::optional<int32_t> id = ReadId(entry);
      if (!id.has_value()) return Malformed("TemplateProcessing");
      (behind ? definition->suffix : definition->prefix).push_back(*id);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const Json& json, BpeDefinition* definition) {
  const auto steps = StepsOf(json, "post_processor", "processors");
  if (!steps.ok()) return steps.status();
  bool seen = false;
  for (const Json* step : *steps) {
    const std::string type = TypeOf(*step);
    if (type == "ByteLevel") continue;  // moves offsets only
    if (type != "TemplateProcessing" || seen)
      return Unsupported("post_processor", type, "ByteLevel, TemplateProcessing");
    seen = true;
    if (absl::Status status = ReadTemplate(*step, definition); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BpeDefinition> ParseTokenizerJson(const std::string& text,
                                                 const TokenizerConfig& config) {
  const absl::StatusOr<Json> parsed = ReadJsonObject(text, kLimits, kFile);
  if (!parsed.ok()) return parsed.status();
  const Json& json = *parsed;
  BpeDefinition definition;
  definition.vocab_file = definition.merges_file = kFile;
  absl::Status status = ReadModel(json, &definition);
  if (!status.ok()) return status;
  status = ReadDecoder(json, &definition);
  if (status.ok()) status = ReadNormalizer(json, &definition);
  if (status.ok()) status = ReadPreTokenizer(json, &definition);
  if (status.ok()) status = ReadPostProcessor(json, &definition);
  AddedTokenList added(definition.vocab, definition.vocab.size());
  if (status.ok()) status = ReadAddedTokens(json, &added);
  if (!status.ok()) return status;
  // Only these classes replace the post_processor by add_bos_token and add_eos_token.
  constexpr std::string_view kClasses[] = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer",
                                           "CohereTokenizer", "JSONGPT2Tokenizer"};
  TokenizerConfig of_class = config;
  if (std::find(std::begin(kClasses), std::end(kClasses), config.tokenizer_class) ==
      std::end(kClasses)) {
    of_class.add_bos_token = of_class.add_eos_token = std::nullopt;
  }
  SetAddedTokens(of_class, std::move(added), &definition);
  return definition;
}

}  // namespace fox
