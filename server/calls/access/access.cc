// Access: see access.h.
#include "server/calls/access/access.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/steady_clock.h"
#include "server/process/log.h"

namespace fox {
namespace {

constexpr absl::string_view kScheme = "Bearer ";

// RFC 6750, behind one space or more (RFC 9110, 11.4); "": not a bearer token.
absl::string_view TokenOf(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  authorization.remove_prefix(kScheme.size());
  while (absl::ConsumePrefix(&authorization, " ")) continue;
  return authorization.size() <= TokenSet::kMaxTokenBytes ? authorization : "";
}

std::optional<uint64_t> Find(const std::unique_ptr<TokenSet>& set, absl::string_view token) {
  return set == nullptr ? std::nullopt : set->Find(token);
}

absl::StatusOr<std::unique_ptr<TokenSet>> LoadTokens(const char* flag, const std::string& path) {
  if (path.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<TokenSet>> set = TokenSet::Load(path);
  if (!set.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " ", set.status().message()));
  }
  if (WatchedFiles::ReadableByOthers(path)) {
    Log(LogLevel::kWarning, "every user of this machine may read the tokens", {{"file", path}});
  }
  return set;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Access>> Access::Load(const std::string& api_key_file,
                                                     const std::string& admin_key_file) {
  absl::StatusOr<std::unique_ptr<TokenSet>> users = LoadTokens("--api-key-file", api_key_file);
  if (!users.ok()) return users.status();
  absl::StatusOr<std::unique_ptr<TokenSet>> admins = LoadTokens("--admin-key-file", admin_key_file);
  if (!admins.ok()) return admins.status();
  return std::make_shared<Access>(*std::move(users), *std::move(admins));
}

absl::Status Access::Check(Privilege needed, const char* method, absl::string_view authorization) {
  if (needed == Privilege::kPublic) return absl::OkStatus();
  const bool open = users_ == nullptr && (needed == Privilege::kUser || admins_ == nullptr);
  if (open) return absl::OkStatus();
  const absl::string_view token = TokenOf(authorization);
  const bool user = Find(users_, token).has_value(), admin = Find(admins_, token).has_value();
  if (admin || (user && needed == Privilege::kUser)) return absl::OkStatus();
  absl::Status status = user ? absl::PermissionDeniedError("an administrator's token is needed")
                             : absl::UnauthenticatedError("a valid token is needed");
  CallInfo call;
  call.method = method;
  refusals_.Add(call, RefusalReason::kCredentials, status, SteadySeconds());
  return status;
}

bool Access::IsAdministrator(absl::string_view authorization) {
  return Find(admins_, TokenOf(authorization)).has_value();
}

std::optional<uint64_t> Access::ClientOf(absl::string_view authorization) {
  const absl::string_view token = TokenOf(authorization);
  const std::optional<uint64_t> user = Find(users_, token);
  return user.has_value() ? user : Find(admins_, token);
}

}  // namespace fox
