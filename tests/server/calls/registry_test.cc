// CallRegistry: an id is one tenant's, and a caller finds only the prompts that it may end.
#include "server/calls/registry.h"

#include <gtest/gtest.h>

#include <vector>

namespace fox {
namespace {

CallInfo Tenant(uint64_t tenant) {
  CallInfo caller;
  caller.tenant = tenant;
  return caller;
}

std::vector<size_t> Prompts(const std::vector<CallRegistry::Entry>& entries) {
  std::vector<size_t> prompts;
  for (const CallRegistry::Entry& entry : entries) prompts.push_back(entry.prompt);
  return prompts;
}

TEST(CallRegistryTest, ACallerFindsTheIdsOfItsTenantAndAnAdministratorAll) {
  using Found = std::vector<size_t>;
  CallRegistry registry;
  CallInfo administrator;
  administrator.administrator = true;
  EXPECT_TRUE(registry.empty());
  ASSERT_TRUE(registry.AddPrompt(7, "order", {nullptr, 1}));
  EXPECT_FALSE(registry.AddPrompt(7, "order", {nullptr, 2}));
  ASSERT_TRUE(registry.AddPrompt(8, "order", {nullptr, 3}));
  EXPECT_EQ(Prompts(registry.FindPrompts(Tenant(0), "order")), Found());
  for (const char* id : {"orde", "orders", ""}) {
    EXPECT_EQ(Prompts(registry.FindPrompts(administrator, id)), Found()) << id;
  }
  EXPECT_EQ(Prompts(registry.FindPrompts(Tenant(7), "order")), Found({1}));
  EXPECT_EQ(Prompts(registry.FindPrompts(administrator, "order")), Found({1, 3}));
  EXPECT_EQ(Prompts(registry.AllPrompts()), Found({1, 3}));
  registry.RemovePrompt(7, "order");
  EXPECT_EQ(Prompts(registry.FindPrompts(Tenant(7), "order")), Found());
  EXPECT_EQ(Prompts(registry.FindPrompts(Tenant(8), "order")), Found({3}));
  EXPECT_FALSE(registry.empty());
  registry.RemovePrompt(8, "order");
  EXPECT_TRUE(registry.empty());
}

}  // namespace
}  // namespace fox
