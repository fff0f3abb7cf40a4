// Access: checks the caller's token against the privilege that a method or route needs, before the
// call's message is read. The tables of privileges are the endpoints' own (rpc/method_policy.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/calls/access/refusal_log.h"
#include "server/calls/access/token_set.h"

namespace fox {

enum class Privilege { kPublic, kUser, kAdmin };

// All methods may be called from any thread.
class Access {
 public:
  Access() = default;  // no tokens: every client may do everything
  Access(std::unique_ptr<TokenSet> users, std::unique_ptr<TokenSet> admins)
      : users_(std::move(users)), admins_(std::move(admins)) {}

  // Reads the files of --api-key-file and --admin-key-file; "": none. InvalidArgument names the
  // flag. Logs a warning for a file that other users may read.
  static absl::StatusOr<std::shared_ptr<Access>> Load(const std::string& api_key_file,
                                                      const std::string& admin_key_file);

  // Ok: the caller has the privilege. `authorization`: the value of the field of that name, "" if
  // it did not come. An administrator's token allows a user's calls, too. If only users have a file
  // of tokens, there are no administrators. Unauthenticated: an unknown token, or none;
  // PermissionDenied: a user's token for an administrator's method. Refusals are counted, some are
  // logged, and their texts reveal nothing. `method`: for the log, of static life.
  absl::Status Check(Privilege needed, const char* method, absl::string_view authorization);

  // True if the token is an administrator's.
  bool IsAdministrator(absl::string_view authorization);
  // The client that owns the token; none: it is not a token of ours.
  std::optional<uint64_t> ClientOf(absl::string_view authorization);

  bool needs_user_token() const { return users_ != nullptr; }
  bool needs_admin_token() const { return admins_ != nullptr; }
  // Calls that Check refused.
  int64_t refused() const { return refusals_.count(); }

 private:
  const std::unique_ptr<TokenSet> users_, admins_;  // null: no token is needed
  RefusalLog refusals_;
};

}  // namespace fox
