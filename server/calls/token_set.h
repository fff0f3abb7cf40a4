// TokenSet: the bearer tokens of a file, one a line; empty lines and those that begin with # mean
// nothing, and a last line without a newline is still being written. A file that is replaced counts
// within a second or two; one that is then wrong is logged, and the old tokens stay. One that is
// emptied or removed leaves no token: so the last one can be revoked.
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

  // Not Ok: the file cannot be read, holds no token or more than kMaxTokens, or a line that is no
  // token: visible ASCII, kMinTokenBytes to kMaxTokenBytes of it. The message names the line, never
  // what is in it.
  static absl::StatusOr<std::unique_ptr<TokenSet>> Load(const std::string& path,
                                                        Seconds interval = WatchedFiles::kInterval);

  // Whose token it is: the same number for the same token, and no two have the same. None: it is
  // not in the set. The time depends on the length of `token` and the size of the set alone.
  std::optional<uint64_t> Find(absl::string_view token);
  size_t size() const;

 private:
  using Digest = std::array<unsigned char, 32>;  // SHA-256
  // None is no error.
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
