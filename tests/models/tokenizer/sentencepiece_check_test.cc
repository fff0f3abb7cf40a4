// Refusals of hostile sentencepiece models and character maps. That damaged models which are
// accepted do no harm: tests/fuzz/models/sentencepiece_fuzzer.cc and charsmap_fuzzer.cc.
#include "models/tokenizer/sentencepiece_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "tests/models/tokenizer/model_proto_writer.h"

namespace fox {
namespace {

absl::Status Create(const std::string& model, int64_t vocab_size = 100000) {
  return SentencePieceTokenizer::Create(model, {}, vocab_size).status();
}

void ExpectModelRefused(const std::string& model) {
  EXPECT_EQ(CheckSentencePieceModel(model).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Create(model).code(), absl::StatusCode::kInvalidArgument);
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

const std::string kPlain = Start() + Letters() + Trainer(false);

TEST(SentencePieceCheckTest, SmallModelsWork) {
  EXPECT_TRUE(Create(kPlain).ok());
  EXPECT_TRUE(Create(Start() + Letters() + BytePieces(256) + Trainer(true)).ok());
  EXPECT_FALSE(Create(kPlain, 6).ok());  // 7 pieces
}

TEST(SentencePieceCheckTest, BadPiecesAreRefused) {
  ExpectModelRefused("");
  ExpectModelRefused(Letters() + Trainer(false));  // no unknown piece
  const auto refused = [](const std::string& text, PieceType type, float score = 0) {
    ExpectModelRefused(kPlain + PieceField(text, type, score));
  };
  refused("<unk2>", PieceType::kUnknown);  // two
  refused("a", PieceType::kNormal);        // twice
  refused("<s>", PieceType::kNormal);      // twice, other kind
  for (const std::string& text :
       {std::string(), std::string("x\0y", 3), std::string(100'000, 'x'), std::string("\xFF")}) {
    refused(text, PieceType::kNormal);
  }
  refused("c", PieceType::kNormal, std::nanf(""));
  refused("c", PieceType::kNormal, -std::numeric_limits<float>::infinity());
}

TEST(SentencePieceCheckTest, BytePiecesAreExactly256) {
  const std::string few = Start() + Letters() + BytePieces(255);
  ExpectModelRefused(few + Trainer(true));
  ExpectModelRefused(Start() + Letters() + Trainer(true));
  ExpectModelRefused(Start() + Letters() + BytePieces(256) + Trainer(false));
  for (const char* last : {"<0xZZ>", "<0xfF>"}) {
    ExpectModelRefused(few + PieceField(last, PieceType::kByte) + Trainer(true));
  }
}

TEST(SentencePieceCheckTest, UserPiecesMustNotNestTooDeeply) {
  std::string model = kPlain;
  for (size_t n = 1; n <= 64; ++n) {
    model += PieceField(std::string(n, 'z'), PieceType::kUserDefined);
  }
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

TEST(SentencePieceCheckTest, CharacterMapsOfAModel) {
  EXPECT_TRUE(Create(kPlain + CharsMapField(NestedCharsMap(32))).ok());
  ExpectModelRefused(kPlain + CharsMapField(NestedCharsMap(33)));
  // A map for decoded text would rewrite it as a whole.
  const auto decoded = [](const std::string& map) {
    return Create(kPlain + ModelPart([&](auto& model) {
                    model.mutable_denormalizer_spec()->set_precompiled_charsmap(map);
                  }));
  };
  EXPECT_TRUE(decoded("").ok());
  EXPECT_EQ(decoded(NestedCharsMap(1)).code(), absl::StatusCode::kUnimplemented);
}

TEST(SentencePieceCheckTest, TheSurfaceOfUnknownPiecesIsText) {
  EXPECT_TRUE(Create(kPlain + UnkSurface("\xE2\x81\x87")).ok());
  ExpectModelRefused(kPlain + UnkSurface("\xE2\x81"));
}

}  // namespace
}  // namespace fox
