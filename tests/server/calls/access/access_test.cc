// Access: the privileges of a client, with and without the two sets of tokens.
#include "server/calls/access/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/eval/run_program.h"

namespace fox {
namespace {

using ::testing::HasSubstr;

constexpr const char* kUser = "Bearer user-token-1";
constexpr const char* kAdmin = "Bearer admin-token-1";

std::shared_ptr<Access> Load(bool users, bool admins) {
  const std::string user_file = TempPath("users"), admin_file = TempPath("admins");
  WriteWhole(user_file, "user-token-1\n");
  WriteWhole(admin_file, "admin-token-1\n");
  return Access::Load(users ? user_file : "", admins ? admin_file : "").value();
}

absl::StatusCode CodeOf(Access& access, Privilege needed, const std::string& authorization) {
  return access.Check(needed, "Method", authorization).code();
}

constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kUnauthenticated = absl::StatusCode::kUnauthenticated;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

TEST(AccessTest, EachPrivilegeAgainstEachToken) {
  struct Row {
    bool users, admins;
    const char* authorization;
    absl::StatusCode user, admin;
  };
  const Row rows[] = {
      {false, false, "", kOk, kOk},
      {false, false, kUser, kOk, kOk},
      {true, false, "", kUnauthenticated, kUnauthenticated},
      {true, false, kUser, kOk, kDenied},
      {true, false, kAdmin, kUnauthenticated, kUnauthenticated},
      {false, true, "", kOk, kUnauthenticated},
      {false, true, kUser, kOk, kUnauthenticated},
      {false, true, kAdmin, kOk, kOk},
      {true, true, "", kUnauthenticated, kUnauthenticated},
      {true, true, kUser, kOk, kDenied},
      {true, true, kAdmin, kOk, kOk},
  };
  for (const Row& row : rows) {
    const std::shared_ptr<Access> access = Load(row.users, row.admins);
    const std::string what =
        std::string(row.users ? "users " : "") + (row.admins ? "admins " : "") + row.authorization;
    EXPECT_EQ(CodeOf(*access, Privilege::kPublic, row.authorization), kOk) << what;
    EXPECT_EQ(CodeOf(*access, Privilege::kUser, row.authorization), row.user) << what;
    EXPECT_EQ(CodeOf(*access, Privilege::kAdmin, row.authorization), row.admin) << what;
    EXPECT_EQ(access->refused(), (row.user != kOk) + (row.admin != kOk)) << what;
  }
}

TEST(AccessTest, OnlyABearerTokenCounts) {
  const std::shared_ptr<Access> access = Load(true, false);
  for (const char* right : {"bearer user-token-1", "Bearer   user-token-1"}) {  // RFC 9110, 11.4
    EXPECT_EQ(CodeOf(*access, Privilege::kUser, right), kOk) << right;
  }
  for (const std::string& wrong :
       {std::string("user-token-1"), std::string("Basic user-token-1"),
        std::string("Bearer user-token-1 "), std::string("Bearer\tuser-token-1"),
        std::string("Bearer"), std::string("Bearer "), std::string("Beareruser-token-1"),
        "Bearer " + std::string(100000, 'x'), std::string("Bearer user-token-1\0", 20)}) {
    EXPECT_EQ(CodeOf(*access, Privilege::kUser, wrong), kUnauthenticated) << wrong.substr(0, 40);
  }
}

TEST(AccessTest, AWrongFileIsToldByItsFlag) {
  const std::string empty = TempPath("empty");
  WriteWhole(empty, "");
  EXPECT_THAT(std::string(Access::Load(empty, "").status().message()),
              HasSubstr("--api-key-file: " + empty + " holds no token"));
  EXPECT_THAT(std::string(Access::Load("", "/nowhere").status().message()),
              HasSubstr("--admin-key-file: /nowhere cannot be read"));
}

}  // namespace
}  // namespace fox
