// Access: what a client may do, at any endpoint. It is asked before a call's message is read; the
// tables of privileges are the endpoints' own (rpc/method_policy.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/calls/refusal_log.h"
#include "server/calls/token_set.h"

namespace fox {

enum class Privilege { kPublic, kUser, kAdmin };

// All methods may be called from any thread.
class Access {
 public:
  Access() = default;  // no tokens: every client may do everything
  Access(std::unique_ptr<TokenSet> users, std::unique_ptr<TokenSet> admins)
      : users_(std::move(users)), admins_(std::move(admins)) {}

  // Of the files of --api-key-file and --admin-key-file; "": none. InvalidArgument names the flag.
  // Logs a warning for a file that others may read.
  static absl::StatusOr<std::shared_ptr<Access>> Load(const std::string& api_key_file,
                                                      const std::string& admin_key_file);

  // `authorization`: the value of the field of that name, "" if it did not come. An administrator's
  // token allows a user's calls, too; where users need tokens and there are none for
  // administrators, there are none. Unauthenticated: no token of ours; PermissionDenied: a user's
  // where an administrator's is needed. Refusals are counted and some are logged, and their texts
  // tell nothing. `method`: for the log, of static life.
  absl::Status Check(Privilege needed, const char* method, absl::string_view authorization);

  // True if the token is an administrator's.
  bool IsAdministrator(absl::string_view authorization);
  // The client whose token it is; none: it has not been verified.
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
