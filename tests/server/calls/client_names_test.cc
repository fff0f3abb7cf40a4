// Tokens are clients, but no connection can be many.
#include "server/calls/client_names.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace fox {
namespace {

TEST(ClientNamesTest, ATokenIsAClientOnAnyConnection) {
  ClientNames names;
  EXPECT_EQ(names.Of("ipv4:1", "a"), names.Of("ipv4:2", "a"));
  EXPECT_NE(names.Of("ipv4:1", "a"), names.Of("ipv4:1", "b"));
  EXPECT_NE(names.Of("ipv4:1", ""), names.Of("ipv4:2", ""));
  EXPECT_EQ(names.Of("ipv4:1", ""), names.Of("ipv4:1", ""));
}

TEST(ClientNamesTest, AConnectionNamesFew) {
  ClientNames names;
  std::set<uint64_t> clients;
  for (int i = 0; i < 1000; ++i) clients.insert(names.Of("ipv4:1", absl::StrCat("token ", i)));
  EXPECT_EQ(clients.size(), ClientNames::kTokensOfAConnection + 1);
  EXPECT_EQ(names.Of("ipv4:1", "token 999"), names.Of("ipv4:1", ""));
  EXPECT_NE(names.Of("ipv4:1", "token 0"), names.Of("ipv4:1", ""));  // those it named stay
}

TEST(ClientNamesTest, ManyConnectionsAreForgotten) {
  ClientNames names;
  const uint64_t token = names.Of("ipv4:0", "a");
  for (int i = 0; i < 10000; ++i) names.Of(absl::StrCat("ipv4:", i), "b");
  EXPECT_EQ(names.Of("ipv4:0", "a"), token);
}

}  // namespace
}  // namespace fox
