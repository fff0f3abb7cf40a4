// TokenizerArchive: what GetTokenizer sends: a zip archive whose one entry, uncompressed, is the
// tokenizer.json of a tokenizer. Read vllm_service.h next.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/tokenizer/tokenizer.h"

namespace fox {

struct TokenizerArchive {
  std::string bytes;
  std::string sha256;  // of the bytes, in hexadecimal digits
};

// FailedPrecondition: no tokenizer (null). Unimplemented: see Tokenizer::ToJson. Takes tens of
// milliseconds.
absl::StatusOr<TokenizerArchive> MakeTokenizerArchive(const Tokenizer* tokenizer);

// A zip archive (PKWARE's APPNOTE 6.3, method 0) of one file; the same bytes for the same content.
// REQUIRES: less than 4 GiB.
std::string StoredZip(const std::string& name, const std::string& content);

}  // namespace fox
