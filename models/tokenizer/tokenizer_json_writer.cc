// The two kinds of tokenizer.json. See tokenizer_json_writer.h.
#include "models/tokenizer/tokenizer_json_writer.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fox {
namespace {

using Json = nlohmann::json;

constexpr char kVisibleSpace[] = "\xE2\x96\x81";  // how a piece writes a space
// Spaces at a text's ends and runs of them: what the library removes. It has made visible spaces
// of spaces when it comes to the end.
constexpr char kSpacesInFront[] = "\\A +";
constexpr char kSpacesBehind[] = "[ \xE2\x96\x81]+\\z";
constexpr char kSeveralSpaces[] = " {2,}";

absl::Status Unsupported(const char* what) {
  return absl::UnimplementedError(
      std::string("tokenizer.json cannot say what the model's tokenizer does: ") + what);
}

Json Replacement(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

Json AddedTokenJson(const AddedToken& token) {
  return {{"id", token.id},          {"content", token.content}, {"single_word", false},
          {"lstrip", token.lstrip},  {"rstrip", token.rstrip},   {"normalized", token.normalized},
          {"special", token.special}};
}

std::string Base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) {
      out.push_back(k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=');
    }
  }
  return out;
}

// As the model file writes it.
std::string NameOf(const Piece& piece) {
  if (piece.type != PieceType::kByte) return piece.text;
  char name[8];
  std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<uint8_t>(piece.text[0]));
  return name;
}

absl::Status CheckExpressible(const SentencePieceFile& file) {
  if (!file.is_bpe) return Unsupported("its sentencepiece model is not BPE");
  if (file.spaces_are_suffixes) return Unsupported("spaces are suffixes");
  if (!file.escape_whitespaces) return Unsupported("spaces are not escaped");
  for (const Piece& piece : file.pieces) {
    if (piece.type == PieceType::kUserDefined) return Unsupported("user-defined pieces");
    if (piece.type == PieceType::kUnused) return Unsupported("unused pieces");
  }
  return absl::OkStatus();
}

Json NormalizerOf(const SentencePieceFile& file) {
  Json steps = Json::array();
  if (!file.charsmap.empty()) {
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", Base64(file.charsmap)}});
  }
  if (file.remove_extra_whitespaces) {
    steps.push_back(Replacement("Regex", kSpacesInFront, ""));
    steps.push_back(Replacement("Regex", kSpacesBehind, ""));
    steps.push_back(Replacement("Regex", kSeveralSpaces, " "));
  }
  if (file.add_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kVisibleSpace}});
  steps.push_back(Replacement("String", " ", kVisibleSpace));
  return {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
}

// The library merges any two neighbours that form a piece, the best score first: each way to cut a
// piece in two is a rule.
Json MergesOf(const SentencePieceFile& file) {
  absl::flat_hash_map<absl::string_view, size_t> id_of_text;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const Piece& piece = file.pieces[id];
    if (piece.type == PieceType::kNormal) id_of_text.emplace(piece.text, id);
  }
  using Rule = std::tuple<float, size_t, size_t>;  // minus the product's score, left, right
  std::vector<Rule> rules;
  for (const auto& [text, id] : id_of_text) {
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = id_of_text.find(text.substr(0, cut));
      const auto right = id_of_text.find(text.substr(cut));
      if (left == id_of_text.end() || right == id_of_text.end()) continue;
      rules.emplace_back(-file.pieces[id].score, left->second, right->second);
    }
  }
  std::sort(rules.begin(), rules.end());
  Json merges = Json::array();
  for (const auto& [score, left, right] : rules) {
    merges.push_back({file.pieces[left].text, file.pieces[right].text});
  }
  return merges;
}

Json ModelOf(Json vocab, Json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

Json TokenizerOf(Json model) {
  return {{"version", "1.0"},         {"truncation", nullptr},    {"padding", nullptr},
          {"normalizer", nullptr},    {"pre_tokenizer", nullptr}, {"post_processor", nullptr},
          {"model", std::move(model)}};
}

}  // namespace

absl::StatusOr<std::string> WriteTokenizerJson(const SentencePieceFile& file) {
  absl::Status status = CheckExpressible(file);
  if (!status.ok()) return status;
  Json vocab = Json::object(), added = Json::array();
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const Piece& piece = file.pieces[id];
    vocab[NameOf(piece)] = id;
    if (piece.type != PieceType::kUnknown && piece.type != PieceType::kControl) continue;
    AddedToken token;
    token.content = piece.text;
    token.id = static_cast<int32_t>(id);
    token.special = true;
    added.push_back(AddedTokenJson(token));
  }
  Json model = ModelOf(std::move(vocab), MergesOf(file));
  model["unk_token"] = file.pieces[static_cast<size_t>(file.unk_id)].text;
  model["fuse_unk"] = true;
  model["byte_fallback"] = file.byte_fallback;
  Json out = TokenizerOf(std::move(model));
  out["added_tokens"] = std::move(added);
  out["normalizer"] = NormalizerOf(file);
  // No Strip of the space in front: what is decoded continues a prompt.
  out["decoder"] = {{"type", "Sequence"},
                    {"decoders",
                     {Replacement("String", kVisibleSpace, " "),
                      {{"type", "ByteFallback"}},
                      {{"type", "Fuse"}}}}};
  return out.dump();
}

std::string WriteTokenizerJson(const BpeDefinition& definition) {
  Json vocab = Json::object(), added = Json::array(), merges = Json::array();
  for (const auto& [token, id] : definition.vocab) vocab[token] = id;
  for (const AddedToken& token : definition.added) {
    vocab[token.content] = token.id;  // else its id would be the next free one
    added.push_back(AddedTokenJson(token));
  }
  for (const auto& [left, right] : definition.merges) merges.push_back({left, right});
  Json model = ModelOf(std::move(vocab), std::move(merges));
  model["ignore_merges"] = definition.ignore_merges;
  Json out = TokenizerOf(std::move(model));
  out["added_tokens"] = std::move(added);
  out["pre_tokenizer"] = {{"type", "ByteLevel"},
                          {"add_prefix_space", definition.add_prefix_space},
                          {"trim_offsets", true},
                          {"use_regex", definition.use_regex}};
  out["decoder"] = {{"type", "ByteLevel"},
                    {"add_prefix_space", true},
                    {"trim_offsets", true},
                    {"use_regex", true}};
  return out.dump();
}

}  // namespace fox
