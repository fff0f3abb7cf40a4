// Decoding of any ids, whole and streamed, against the sentencepiece library itself, and encoding
// of long texts. Small texts over all kinds of models: tests/fuzz/models/sentencepiece_fuzzer.cc.
#include "models/tokenizer/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "models/tokenizer/token_stream.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer/model_proto_writer.h"
#include "tests/models/tokenizer/sentencepiece_library.h"
#include "tests/models/tokenizer/test_files.h"

namespace fox {
namespace {

using Ids = std::vector<int32_t>;

std::string DemoModel() { return RepositoryFile("models/demo/tokenizer.model"); }

// Every kind of piece, with spaces and U+2581 in all places.
std::string OddModel() {
  return Start() + Letters() + BytePieces(256) + Trainer(true) +
         PieceField("\u2581a", PieceType::kNormal) + PieceField("a\u2581b", PieceType::kNormal) +
         PieceField("\u2581\u2581", PieceType::kNormal) +
         PieceField(" a", PieceType::kUserDefined) + PieceField("\u2581 ", PieceType::kNormal) +
         PieceField("\u2581c", PieceType::kUserDefined) + PieceField("\u00e9", PieceType::kNormal) +
         PieceField("\u2581u", PieceType::kUnused) + PieceField("\uFFFD", PieceType::kNormal) +
         PieceField("<more>", PieceType::kControl);
}

// A model in our tokenizer and in the library.
class Both {
 public:
  explicit Both(const std::string& model)
      : library_(model), file_(*CheckSentencePieceModel(model)) {
    auto created = SentencePieceTokenizer::Create(model, {}, 100000);
    EXPECT_TRUE(created.ok()) << created.status();
    tokenizer_ = *std::move(created);
    for (size_t id = 0; id < file_.pieces.size(); ++id) {
      ids_of_type_[static_cast<size_t>(file_.pieces[id].type)].push_back(static_cast<int32_t>(id));
    }
  }

  std::string Library(const Ids& ids) const { return library_.Decode(ids); }
  std::string Ours(const Ids& ids) const { return Detokenize(*tokenizer_, ids, true); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool IsByte(int32_t id) const { return TypeOf(id) == PieceType::kByte; }
  // REQUIRES: the model has byte pieces.
  int32_t ByteId(uint8_t byte) const {
    return ids_of_type_[static_cast<size_t>(PieceType::kByte)][byte];
  }

  // Random ids in which all kinds of pieces are equally frequent.
  Ids Random(std::mt19937& rng) const {
    Ids ids;
    const size_t length = 1 + rng() % 12;
    while (ids.size() < length) {
      const auto& kind = ids_of_type_[1 + rng() % (ids_of_type_.size() - 1)];
      if (kind.empty()) continue;
      const int32_t id = kind[rng() % kind.size()];
      if (IsByte(id)) {
        AppendBytes(rng, &ids);
      } else {
        ids.push_back(id);
      }
    }
    return ids;
  }

 private:
  PieceType TypeOf(int32_t id) const { return file_.pieces[static_cast<size_t>(id)].type; }

  // The byte piece of a random byte, or the byte pieces of a character, some of them missing.
  void AppendBytes(std::mt19937& rng, Ids* ids) const {
    if (rng() % 2 == 0) return ids->push_back(ByteId(static_cast<uint8_t>(rng())));
    std::string character;
    AppendUtf8(0x80u << (rng() % 13), &character);
    for (const char byte : character) {
      if (rng() % 8 != 0) ids->push_back(ByteId(static_cast<uint8_t>(byte)));
    }
  }

  SentencePieceLibrary library_;
  SentencePieceFile file_;
  std::unique_ptr<SentencePieceTokenizer> tokenizer_;
  std::vector<Ids> ids_of_type_ = std::vector<Ids>(7);  // by PieceType
};

// A stream gives each text as soon as no later token can change it.
void ExpectStreams(const Both& both, const Ids& ids) {
  TokenStream stream(both.tokenizer(), true);
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string part = stream.Push(ids[i]);
    ASSERT_TRUE(IsValidUtf8(part)) << i;
    text += part;
    const std::string now = both.Library(Ids(ids.begin(), ids.begin() + static_cast<int>(i) + 1));
    if (!both.IsByte(ids[i])) {
      ASSERT_EQ(text, now) << i;
      continue;
    }
    // Incomplete bytes at the end, which Decode writes as U+FFFD each, are held back: up to three.
    ASSERT_EQ(now.compare(0, text.size(), text), 0) << i;
    ASSERT_LE(now.size() - text.size(), 3 * 3u) << i;
  }
  ASSERT_EQ(text + stream.Finish(), both.Library(ids));
}

void ExpectDecodesLikeTheLibrary(const std::string& model, uint32_t seed, int rounds) {
  const Both both(model);
  std::mt19937 rng(seed);
  for (int round = 0; round < rounds; ++round) {
    const Ids ids = both.Random(rng);
    ASSERT_EQ(both.Ours(ids), both.Library(ids)) << ::testing::PrintToString(ids);
    ExpectStreams(both, ids);
    if (::testing::Test::HasFatalFailure()) FAIL() << ::testing::PrintToString(ids);
  }
}

TEST(SentencePieceTokenizerTest, RandomIdsUnderEverySetting) {
  uint32_t seed = 2;
  for (const std::string& model : {DemoModel(), OddModel()}) {
    for (const bool prefix : {false, true}) {
      for (const bool extra : {false, true}) {
        SCOPED_TRACE(seed);
        ExpectDecodesLikeTheLibrary(model + Spaces(prefix, extra), seed++, 1500);
      }
    }
  }
  for (const std::string& surface :
       {std::string(), std::string(" "), std::string("\u2581"), std::string("x\0y", 3)}) {
    SCOPED_TRACE(surface);
    ExpectDecodesLikeTheLibrary(OddModel() + UnkSurface(surface), seed++, 500);
  }
}

// Runs of byte pieces, and spaces at the start of a text, with their expected texts.
TEST(SentencePieceTokenizerTest, BytesAndLeadingSpaces) {
  const Both both(OddModel());
  const std::string r = "\uFFFD";
  const auto bytes = [&](std::initializer_list<int> values) {
    Ids ids;
    for (const int value : values) ids.push_back(both.ByteId(static_cast<uint8_t>(value)));
    return ids;
  };
  const auto expect = [&](const Ids& ids, const std::string& text) {
    EXPECT_EQ(both.Library(ids), text);
    EXPECT_EQ(both.Ours(ids), text);
  };
  constexpr int32_t kUnk = 0, kControl = 1, kA = 3, kSpace = 6;
  expect(bytes({0xE2, 0x98, 'a'}), r + r + "a");
  expect(bytes({0xF0, 0x9F, 0x98}), r + r + r);
  Ids broken = bytes({0xE2});
  broken.push_back(kControl);  // invisible, but it ends the character
  for (const int32_t id : bytes({0x98, 0x83})) broken.push_back(id);
  expect(broken, r + r + r);
  expect(bytes({' '}), " ");
  expect({kUnk, kA}, " \u2047 a");
  expect({kSpace, kControl, kSpace, kA, kSpace}, "a ");
}

TEST(SentencePieceTokenizerTest, PaddingIdsEndACharacter) {
  const Both both(OddModel());
  const Ids ids = {both.ByteId(0xC3), both.tokenizer().info().vocab_size, both.ByteId(0xA9), -1};
  EXPECT_EQ(both.Ours(ids), "\uFFFD\uFFFD");
}

// The library appends each unknown character to one string, which would take minutes for a whole
// text.
TEST(SentencePieceTokenizerTest, UnknownCharactersInARowAreOneToken) {
  const auto tokenizer =
      SentencePieceTokenizer::Create(Start() + Letters() + Trainer(false), {}, 100);
  ASSERT_TRUE(tokenizer.ok());
  std::string text;
  for (int i = 0; i < (1 << 18); ++i) text += "\u65e5";
  EXPECT_EQ(*(*tokenizer)->Encode("a" + text + "b", false), (Ids{6, 3, 0, 4}));
}

TEST(SentencePieceTokenizerTest, TextThatSpellsAUserDefinedPieceStaysText) {
  const auto tokenizer = SentencePieceTokenizer::Create(
      Start() + Letters() + PieceField("<m>", PieceType::kUserDefined) +
          PieceField("\u2581\u2581", PieceType::kUserDefined) + BytePieces(256) + Trainer(true) +
          Spaces(true, false),
      {}, 300);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "a<m>  b</s>";
  EXPECT_EQ(*(*tokenizer)->Encode(text, true), (Ids{1, 6, 3, 7, 8, 4, 2}));
  EXPECT_EQ(*(*tokenizer)->EncodeAsText(text, true),
            (Ids{6, 3, 69, 118, 71, 8, 4, 69, 56, 124, 71}));
}

TEST(SentencePieceTokenizerTest, AtFullSizeWindowsGiveTheTokensOfTheWhole) {
  std::string text = RepositoryFile("kernels/docs/acp.md");
  while (text.size() < 4 * kWindowBytes) text += text;
  text += std::string(3 * kWindowBytes, 'a') + std::string(2 * kWindowBytes, ' ') + "b";
  const Both both(DemoModel());
  Ids whole = SentencePieceLibrary(DemoModel()).Encode(text);
  whole.insert(whole.begin(), *both.tokenizer().info().bos_id);
  EXPECT_EQ(*both.tokenizer().Encode(text, true), whole);
}

}  // namespace
}  // namespace fox
