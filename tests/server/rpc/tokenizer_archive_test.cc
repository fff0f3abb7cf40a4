// The archive byte by byte, and its digest.
#include "server/rpc/tokenizer_archive.h"

#include <gtest/gtest.h>

#include "tests/e2e/character_tokenizer.h"

namespace fox {
namespace {

uint32_t Number(const std::string& bytes, size_t at, int count) {
  uint32_t value = 0;
  for (int i = count - 1; i >= 0; --i) {
    value = value << 8 | static_cast<uint8_t>(bytes.at(at + static_cast<size_t>(i)));
  }
  return value;
}

TEST(TokenizerArchiveTest, ARecordForEachPart) {
  const std::string content = "123456789", name = "a.json";
  const std::string zip = StoredZip(name, content);
  const uint32_t crc = 0xcbf43926;  // the check value of CRC-32
  EXPECT_EQ(Number(zip, 0, 4), 0x04034b50u);
  EXPECT_EQ(Number(zip, 8, 2), 0u);  // stored
  EXPECT_EQ(Number(zip, 14, 4), crc);
  EXPECT_EQ(Number(zip, 18, 4), content.size());
  EXPECT_EQ(Number(zip, 22, 4), content.size());
  EXPECT_EQ(Number(zip, 26, 2), name.size());
  EXPECT_EQ(zip.substr(30, 15), name + content);

  const size_t directory = 45;
  EXPECT_EQ(Number(zip, directory, 4), 0x02014b50u);
  EXPECT_EQ(Number(zip, directory + 16, 4), crc);
  EXPECT_EQ(Number(zip, directory + 42, 4), 0u);  // where the entry is
  EXPECT_EQ(zip.substr(directory + 46, name.size()), name);

  const size_t end = directory + 46 + name.size();
  EXPECT_EQ(Number(zip, end, 4), 0x06054b50u);
  EXPECT_EQ(Number(zip, end + 10, 2), 1u);
  EXPECT_EQ(Number(zip, end + 12, 4), end - directory);
  EXPECT_EQ(Number(zip, end + 16, 4), directory);
  EXPECT_EQ(zip.size(), end + 22);
}

TEST(TokenizerArchiveTest, HoldsTheJsonAndKnowsItsDigest) {
  const CharacterTokenizer tokenizer;
  const absl::StatusOr<TokenizerArchive> archive = MakeTokenizerArchive(&tokenizer);
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_EQ(archive->bytes, StoredZip("tokenizer.json", *tokenizer.ToJson()));
  EXPECT_EQ(archive->sha256.size(), 64u);
  EXPECT_EQ(archive->sha256.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(MakeTokenizerArchive(nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace fox
