// TokenizerArchive: see tokenizer_archive.h.
#include "server/rpc/tokenizer_archive.h"

#include <openssl/sha.h>
#include <zlib.h>

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace fox {
namespace {

// Little-endian numbers of a record.
struct Record {
  Record& U16(uint32_t value) { return Bytes(value, 2); }
  Record& U32(size_t value) { return Bytes(value, 4); }
  Record& Bytes(size_t value, int count) {
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  std::string bytes;
};

constexpr uint32_t kVersion = 20;  // 2.0, which every reader knows
constexpr uint32_t kUtf8Names = 0x800;
constexpr uint32_t kStored = 0;
constexpr uint32_t kFirstDay = 0x21;  // 1980-01-01, the earliest that can be said

// What both headers of an entry say of it, from the version on.
void Describe(const std::string& name, const std::string& content, Record* out) {
  const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size());
  out->U16(kVersion).U16(kUtf8Names).U16(kStored).U16(0).U16(kFirstDay);
  out->U32(crc).U32(content.size()).U32(content.size());
  out->U16(static_cast<uint32_t>(name.size())).U16(0);
}

}  // namespace

std::string StoredZip(const std::string& name, const std::string& content) {
  Record entry;
  entry.U32(0x04034b50);
  Describe(name, content, &entry);
  const std::string file = entry.bytes + name + content;

  Record directory;
  directory.U32(0x02014b50).U16(kVersion);
  Describe(name, content, &directory);
  directory.U16(0).U16(0).U16(0).U32(0).U32(0);  // no comment, first disk, a plain file at 0
  const std::string listed = directory.bytes + name;

  Record end;
  end.U32(0x06054b50).U16(0).U16(0).U16(1).U16(1);
  end.U32(listed.size()).U32(file.size()).U16(0);
  return file + listed + end.bytes;
}

absl::StatusOr<TokenizerArchive> MakeTokenizerArchive(const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return absl::FailedPreconditionError("the model has no tokenizer");
  const absl::StatusOr<std::string> json = tokenizer->Unescaped().ToJson();
  if (!json.ok()) return json.status();
  TokenizerArchive out;
  out.bytes = StoredZip("tokenizer.json", *json);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(out.bytes.data()), out.bytes.size(), digest);
  out.sha256 = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
  return out;
}

}  // namespace fox
