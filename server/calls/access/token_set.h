// TokenSet: the bearer tokens of a file, one a line. Empty lines and comments (#) are skipped; a
// last line without a newline is still being written. A replaced file is read within a second or
// two. If its contents are wrong, that is logged, and the old tokens stay. An empty or removed file
// leaves no token, so that the last token can be revoked.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/mutex.h"
#include "server/process/watched_files.h"

namespace fox {

// All methods may be called from any thread.
class TokenSet {
 public:
  static constexpr size_t kMinTokenBytes = 8, kMaxTokenBytes = 1024, kMaxTokens = 4096;

  // Not Ok: the file cannot be read, holds no token or more than kMaxTokens, or a line is no token:
  // kMinTokenBytes to kMaxTokenBytes of visible ASCII. The message gives the line's number, never
  // its text.
  static absl::StatusOr<std::unique_ptr<TokenSet>> Load(const std::string& path,
                                                        Seconds interval = WatchedFiles::kInterval);

  // A number for the token's owner: equal for equal tokens, different for different ones. None: the
  // token is not in the set. The time depends on the length of `token` and the size of the set
  // alone.
  std::optional<uint64_t> Find(absl::string_view token);
  size_t size() const;

 private:
  using Digest = std::array<unsigned char, 32>;  // SHA-256
  // An empty list is no error.
  static absl::StatusOr<std::vector<Digest>> Read(const std::string& path);
  static Digest DigestOf(absl::string_view token);

  TokenSet(std::string path, Seconds interval);
  void ReloadIfChanged();

  const std::string path_;
  WatchedFiles watched_;
  mutable Mutex mutex_;
  std::shared_ptr<const std::vector<Digest>> tokens_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
