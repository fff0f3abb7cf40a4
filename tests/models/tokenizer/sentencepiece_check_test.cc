// Hostile sentencepiece models: each is refused, or what was accepted can be used.
#include "models/tokenizer/sentencepiece_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "models/tokenizer/token_stream.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer/model_proto_writer.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

std::string Normalizer(const std::string& charsmap) {
  return BytesField(3, BytesField(2, charsmap));
}

absl::Status Create(const std::string& model, int64_t vocab_size = 100000) {
  return SentencePieceTokenizer::Create(model, true, vocab_size).status();
}

void ExpectModelRefused(const std::string& model) {
  EXPECT_EQ(CheckSentencePieceModel(model).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Create(model).code(), absl::StatusCode::kInvalidArgument);
}

// Loads if it loads; then it must encode and decode without harm.
void LoadThenUse(const std::string& model) {
  const auto tokenizer = SentencePieceTokenizer::Create(model, true, 100000);
  if (!tokenizer.ok()) {
    EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.status()) ||
                absl::IsUnimplemented(tokenizer.status()));
    EXPECT_LE(tokenizer.status().message().size(), 1024u);
    return;
  }
  for (const char* text :
       {"", "ab ba  ab", "\xC3\xA9\xF0\x9F\x98\x80 x\xE2\x96\x81", "<s>\x01\n"}) {
    const auto ids = (*tokenizer)->Encode(text, true);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, (*tokenizer)->info().vocab_size);
    }
    EXPECT_TRUE(IsValidUtf8(Detokenize(**tokenizer, *ids, false)));
  }
}

// --- a writer of character maps: a double array in blocks of 256 units ---

constexpr uint32_t kLeaf = 1u << 8, kValue = 1u << 31;  // a value unit has no byte

std::string CharsMap(std::vector<uint32_t> units, const std::string& replacements) {
  units.resize((units.size() + 255) / 256 * 256, kValue);
  std::string out;
  const auto put = [&out](uint32_t value) {
    for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  };
  put(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) put(unit);
  return out + replacements;
}

uint32_t Unit(uint32_t label, uint32_t offset, bool leaf) {
  return (offset << 10) | (leaf ? kLeaf : 0) | label;
}

// The key "a" repeated 1 to `length` times, each with an entry.
std::string NestedCharsMap(int length) {
  std::vector<uint32_t> units(static_cast<size_t>(length + 2) * 256, kValue);
  uint32_t state = 256;
  units[0] = Unit(0, state, false);
  for (int i = 0; i < length; ++i) {
    const uint32_t child = state ^ 'a';
    const uint32_t next = state + 256;
    units[child] = Unit('a', child ^ next, true);
    state = next;
  }
  return CharsMap(units, std::string("x\0", 2));
}

TEST(SentencePieceCheckTest, SmallModelsWork) {
  EXPECT_TRUE(Create(Start() + Letters() + Trainer(false)).ok());
  EXPECT_TRUE(Create(Start() + Letters() + BytePieces(256) + Trainer(true)).ok());
  EXPECT_FALSE(Create(Start() + Letters() + Trainer(false), 6).ok());  // 7 pieces
  LoadThenUse(Start() + Letters() + BytePieces(256) + Trainer(true));
}

TEST(SentencePieceCheckTest, BadPiecesAreRefused) {
  const std::string rest = Start() + Letters() + Trainer(false);
  ExpectModelRefused("");
  ExpectModelRefused(Letters() + Trainer(false));                        // no unknown piece
  ExpectModelRefused(rest + PieceField("<unk2>", PieceType::kUnknown));  // two
  ExpectModelRefused(rest + PieceField("", PieceType::kNormal));
  ExpectModelRefused(rest + PieceField("a", PieceType::kNormal));    // twice
  ExpectModelRefused(rest + PieceField("<s>", PieceType::kNormal));  // twice, other kind
  ExpectModelRefused(rest + PieceField(std::string("x\0y", 3), PieceType::kNormal));
  ExpectModelRefused(rest + PieceField(std::string(100'000, 'x'), PieceType::kNormal));
  ExpectModelRefused(rest + PieceField("\xFF", PieceType::kNormal));
  ExpectModelRefused(rest + PieceField("c", PieceType::kNormal, std::nanf("")));
  ExpectModelRefused(rest +
                     PieceField("c", PieceType::kNormal, -std::numeric_limits<float>::infinity()));
}

TEST(SentencePieceCheckTest, BytePiecesAreExactly256) {
  ExpectModelRefused(Start() + Letters() + BytePieces(255) + Trainer(true));
  ExpectModelRefused(Start() + Letters() + Trainer(true));
  ExpectModelRefused(Start() + Letters() + BytePieces(256) + Trainer(false));
  ExpectModelRefused(Start() + Letters() + BytePieces(255) +
                     PieceField("<0xZZ>", PieceType::kByte) + Trainer(true));
  ExpectModelRefused(Start() + Letters() + BytePieces(255) +
                     PieceField("<0xfF>", PieceType::kByte) + Trainer(true));
}

TEST(SentencePieceCheckTest, UserPiecesMustNotNestTooDeeply) {
  std::string model = Start() + Letters() + Trainer(false);
  for (size_t n = 1; n <= 64; ++n) {
    model += PieceField(std::string(n, 'z'), PieceType::kUserDefined);
  }
  LoadThenUse(model);
  EXPECT_TRUE(Create(model).ok());
  ExpectModelRefused(model + PieceField(std::string(65, 'z'), PieceType::kUserDefined));
}

TEST(SentencePieceCheckTest, CharacterMaps) {
  EXPECT_TRUE(CheckCharsMap(NestedCharsMap(1)).ok());
  EXPECT_TRUE(CheckCharsMap(NestedCharsMap(32)).ok());
  EXPECT_FALSE(CheckCharsMap(NestedCharsMap(33)).ok());

  const std::string text = std::string("x\0", 2);
  EXPECT_FALSE(CheckCharsMap(CharsMap({Unit(0, 1u << 20, false)}, text)).ok());  // root outside
  std::vector<uint32_t> units(512, kValue);
  units[0] = Unit(0, 256, false);
  EXPECT_TRUE(CheckCharsMap(CharsMap(units, text)).ok());
  units[256 ^ 'a'] = Unit('a', 1u << 15, false);  // a child outside
  EXPECT_FALSE(CheckCharsMap(CharsMap(units, text)).ok());
  units[256 ^ 'a'] = Unit('a', 'a', true);  // leads back to its own state
  EXPECT_FALSE(CheckCharsMap(CharsMap(units, text)).ok());

  const std::string good = NestedCharsMap(2);
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(CheckCharsMap(good.substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(CheckCharsMap(good + "not terminated").ok());
  EXPECT_FALSE(CheckCharsMap(good + std::string(2000, 'x') + std::string(1, '\0')).ok());
}

TEST(SentencePieceCheckTest, AnAcceptedCharacterMapIsUsed) {
  const std::string model = Start() + Letters() + Trainer(false);
  LoadThenUse(model + Normalizer(NestedCharsMap(32)));
  ExpectModelRefused(model + Normalizer(NestedCharsMap(33)));
}

// It would rewrite decoded text as a whole.
TEST(SentencePieceCheckTest, ACharacterMapForDecodedTextIsNotSupported) {
  const std::string model = Start() + Letters() + Trainer(false);
  EXPECT_TRUE(Create(model + BytesField(5, VarintField(3, 1))).ok());
  EXPECT_EQ(Create(model + BytesField(5, BytesField(2, NestedCharsMap(1)))).code(),
            absl::StatusCode::kUnimplemented);
}

TEST(SentencePieceCheckTest, TheSurfaceOfUnknownPiecesIsText) {
  const std::string model = Start() + Letters() + Trainer(false);
  EXPECT_TRUE(Create(model + UnkSurface("\xE2\x81\x87")).ok());
  ExpectModelRefused(model + UnkSurface("\xE2\x81"));
}

TEST(SentencePieceCheckTest, TruncatedAtEveryByte) {
  const std::string model =
      Start() + Letters() + BytePieces(256) + Trainer(true) + Normalizer(NestedCharsMap(1));
  for (size_t n = 0; n < model.size(); ++n) LoadThenUse(model.substr(0, n));
}

TEST(SentencePieceCheckTest, RandomDamage) {
  std::mt19937 rng(13);
  const std::string small =
      Start() + Letters() + BytePieces(256) + Trainer(true) + Normalizer(NestedCharsMap(3));
  for (int round = 0; round < 3000; ++round) {
    std::string model = small;
    for (unsigned i = 0; i < 1 + rng() % 4; ++i) {
      model[rng() % model.size()] = static_cast<char>(rng() & 0xFF);
    }
    LoadThenUse(model);
  }
  const std::string demo = RepositoryFile("models/demo/tokenizer.model");
  EXPECT_TRUE(Create(demo).ok());
  for (int round = 0; round < 40; ++round) {
    std::string model = demo;
    char& byte = model[rng() % model.size()];
    byte = static_cast<char>(byte ^ (1 << (rng() % 8)));
    LoadThenUse(model);
    LoadThenUse(demo.substr(0, rng() % demo.size()));
  }
}

}  // namespace
}  // namespace fox
