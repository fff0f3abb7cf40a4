// A sentencepiece model, loaded and then used on a text, against the library: the same ids, also in
// windows of few bytes, and the same text for them. With an odd first byte the model is the rest of
// the input; else it is made of pieces and settings that the input chooses.
#include <algorithm>
#include <string>
#include <vector>

#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "tests/fuzz/models/tokenizer_use.h"
#include "tests/models/tokenizer/model_proto_writer.h"
#include "tests/models/tokenizer/sentencepiece_library.h"

namespace fox {
namespace {

constexpr int64_t kVocabSize = 300;  // more than a composed model has

// A text of a few letters, so that pieces match, or of any bytes.
std::string PieceText(FuzzInput& in) {
  constexpr const char* kParts[] = {"a", "b", "\xE2\x96\x81", "ab", " ", "<s>", "\xC3\xA9", "aa"};
  const size_t form = in.Below(8);
  if (form == 0) return in.Text(8);
  std::string text;
  for (size_t i = 0; i < form; ++i) text += kParts[in.Below(std::size(kParts))];
  return text;
}

std::string ComposedModel(FuzzInput& in) {
  const bool bytes = in.Bool();
  std::string model = Start() + (bytes ? BytePieces(256) : "");
  for (size_t count = in.Below(24); count > 0; --count) {
    const std::string text = PieceText(in);
    const auto type = static_cast<PieceType>(in.Bool() ? 1 : 1 + in.Below(6));
    model += PieceField(text, type, -static_cast<float>(in.Below(32)));
  }
  model += ModelPart([&](auto& settings) {
    sentencepiece::TrainerSpec& trainer = *settings.mutable_trainer_spec();
    trainer.set_byte_fallback(bytes);
    trainer.set_model_type(static_cast<sentencepiece::TrainerSpec::ModelType>(1 + in.Below(4)));
    trainer.set_treat_whitespace_as_suffix(in.Bool());
    sentencepiece::NormalizerSpec& normalizer = *settings.mutable_normalizer_spec();
    normalizer.set_add_dummy_prefix(in.Bool());
    normalizer.set_remove_extra_whitespaces(in.Bool());
    normalizer.set_escape_whitespaces(in.Bool());
  });
  if (in.Bool()) model += UnkSurface(in.Text(8));
  return model;
}

std::string FuzzText(FuzzInput& in) {
  const size_t repeats = 1 + in.Below(8);
  const std::string part = in.Text(64);
  std::string text;
  for (size_t i = 0; i < repeats; ++i) text += part;
  return text;
}

}  // namespace

FUZZ_TEST(sentencepiece) {
  const size_t choice = in.Byte();
  const bool raw = (choice & 1) != 0, add_bos = (choice & 2) == 0;
  const size_t window_bytes = 8 + in.Below(128);
  const std::string text = FuzzText(in);
  std::string model = raw ? "" : ComposedModel(in);
  model += in.Rest();
  TokenizerConfig config;
  config.add_bos_token = add_bos;
  const auto tokenizer = SentencePieceTokenizer::Create(model, config, kVocabSize, window_bytes);
  if (!tokenizer.ok()) return CheckRefusal(tokenizer.status());
  UseTokenizer(**tokenizer, text);
  const absl::StatusOr<SentencePieceFile> file = CheckSentencePieceModel(model);
  for (const Piece& piece : file->pieces) {
    const bool added = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    if (added && text.find(piece.text) != std::string::npos) return;  // text to the library
  }
  const absl::StatusOr<std::vector<int32_t>> ids = (*tokenizer)->Encode(text, false);
  if (!ids.ok()) return;
  const SentencePieceLibrary library(model);
  FOX_CHECK(*ids == library.Encode(text));
  FOX_CHECK(Detokenize(**tokenizer, *ids, /*skip_special=*/true) == library.Decode(*ids));
}

}  // namespace fox
