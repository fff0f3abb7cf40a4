// TokenSet: see token_set.h.
#include "server/calls/access/token_set.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/steady_clock.h"
#include "server/process/log.h"

namespace fox {
namespace {

bool IsToken(absl::string_view line) {
  const bool visible = std::all_of(line.begin(), line.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  return visible && line.size() >= TokenSet::kMinTokenBytes &&
         line.size() <= TokenSet::kMaxTokenBytes;
}

}  // namespace

TokenSet::TokenSet(std::string path, Seconds interval)
    : path_(std::move(path)), watched_({path_}, interval) {}

absl::StatusOr<std::unique_ptr<TokenSet>> TokenSet::Load(const std::string& path,
                                                         Seconds interval) {
  std::unique_ptr<TokenSet> set(new TokenSet(path, interval));
  absl::StatusOr<std::vector<Digest>> tokens = Read(path);
  if (!tokens.ok()) return tokens.status();
  if (tokens->empty()) {
    return absl::InvalidArgumentError("holds no token: each is a line, up to its newline");
  }
  const MutexLock lock(set->mutex_);
  set->tokens_ = std::make_shared<const std::vector<Digest>>(*std::move(tokens));
  return set;
}

absl::StatusOr<std::vector<TokenSet::Digest>> TokenSet::Read(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return text.status();
  std::vector<Digest> out;
  std::vector<absl::string_view> lines = absl::StrSplit(*text, '\n');
  if (!lines.back().empty()) {
    Log(LogLevel::kWarning, "the last line of the tokens has no newline and does not count",
        {{"file", path}});
  }
  lines.pop_back();
  int number = 0;
  for (absl::string_view line : lines) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    if (!IsToken(line)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": a token has ",
                                                     kMinTokenBytes, " to ", kMaxTokenBytes,
                                                     " visible ASCII characters"));
    }
    out.push_back(DigestOf(line));
  }
  OPENSSL_cleanse(text->data(), text->size());
  if (out.size() > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat("holds more than ", kMaxTokens, " tokens"));
  }
  return out;
}

TokenSet::Digest TokenSet::DigestOf(absl::string_view token) {
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), out.data());
  return out;
}

std::optional<uint64_t> TokenSet::Find(absl::string_view token) {
  ReloadIfChanged();
  std::shared_ptr<const std::vector<Digest>> tokens;
  {
    const MutexLock lock(mutex_);
    tokens = tokens_;
  }
  const Digest digest = DigestOf(token);
  int found = 0;
  for (const Digest& known : *tokens) {  // all of them, whichever it is
    found |= static_cast<int>(CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0);
  }
  if (found == 0) return std::nullopt;
  uint64_t client = 0;
  std::memcpy(&client, digest.data(), sizeof(client));
  return client;
}

size_t TokenSet::size() const {
  const MutexLock lock(mutex_);
  return tokens_->size();
}

void TokenSet::ReloadIfChanged() {
  if (!watched_.Changed(SteadySeconds())) return;
  absl::StatusOr<std::vector<Digest>> tokens = Read(path_);
  if (absl::IsNotFound(tokens.status())) tokens = std::vector<Digest>();
  if (!tokens.ok()) {
    Log(LogLevel::kError, "new tokens refused, the old ones stay",
        {{"file", path_}, {"reason", std::string(tokens.status().message())}});
    return;
  }
  Log(tokens->empty() ? LogLevel::kWarning : LogLevel::kInfo, "tokens read again",
      {{"file", path_}, {"tokens", static_cast<int64_t>(tokens->size())}});
  const MutexLock lock(mutex_);
  tokens_ = std::make_shared<const std::vector<Digest>>(*std::move(tokens));
}

}  // namespace fox
