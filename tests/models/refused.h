// ExpectRefused: the form of every error about a file of a model directory: one printable line of
// at most 1 KiB, without an absolute path.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

namespace fox {

inline void ExpectRefused(const absl::Status& status, const std::string& part) {
  ASSERT_FALSE(status.ok()) << "accepted; expected an error with: " << part;
  const std::string message(status.message().data(), status.message().size());
  EXPECT_THAT(message, ::testing::HasSubstr(part));
  EXPECT_LE(message.size(), 1024u);
  EXPECT_EQ(message.find(::testing::TempDir()), std::string::npos) << message;
  for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << message;
  EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
              absl::IsUnimplemented(status))
      << status.ToString();
}

}  // namespace fox
