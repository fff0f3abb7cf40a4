// WindowsEvent: what the page reads, as JSON that any parser takes.
#include "server/http/windows_event.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "nlohmann/json.hpp"

namespace fox {
namespace {

TEST(WindowsEventTest, EveryFieldIsThereAndInfinityIsNull) {
  v1::Windows windows;
  windows.set_tokens(130);
  windows.set_layers(2);
  windows.set_kv_heads(1);
  windows.set_page_size(64);
  windows.set_page_bytes(16672);
  for (const uint32_t first : {0u, 2u}) windows.add_first_page(first);
  windows.mutable_acp()->set_pages_allocated(6);
  windows.mutable_acp()->set_pages_evicted(2);
  windows.mutable_acp()->set_log_tolerance(-10.5F);
  windows.mutable_acp()->set_max_log_evicted_mass(-std::numeric_limits<float>::infinity());
  const std::string event = WindowsEvent(windows, /*choice=*/3);
  ASSERT_EQ(event.substr(0, 6), "data: ");
  ASSERT_EQ(event.substr(event.size() - 2), "\n\n");
  const auto json = nlohmann::json::parse(event.substr(6));
  EXPECT_EQ(json["object"], "fox.windows");
  EXPECT_EQ(json["index"], 3);
  EXPECT_EQ(json["tokens"], 130);
  EXPECT_EQ(json["layers"], 2);
  EXPECT_EQ(json["kv_heads"], 1);
  EXPECT_EQ(json["page_size"], 64);
  EXPECT_EQ(json["page_bytes"], 16672);
  EXPECT_EQ(json["first_page"], (std::vector<int>{0, 2}));
  EXPECT_EQ(json["acp"]["pages_allocated"], 6);
  EXPECT_EQ(json["acp"]["pages_evicted"], 2);
  EXPECT_EQ(json["acp"]["log_tolerance"], -10.5);
  EXPECT_TRUE(json["acp"]["max_log_evicted_mass"].is_null());
}

}  // namespace
}  // namespace fox
