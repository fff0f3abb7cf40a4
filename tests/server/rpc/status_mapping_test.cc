// Every absl code has its gRPC code; messages are short and whole.
#include "server/rpc/status_mapping.h"

#include <gtest/gtest.h>

#include <string>

namespace fox {
namespace {

TEST(StatusMappingTest, CodesAreEqualButNeverUnknown) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status = ToGrpc(absl::Status(static_cast<absl::StatusCode>(code), "why"));
    const bool ours = code == 2 || code == 15;  // UNKNOWN, DATA_LOSS
    EXPECT_EQ(status.error_code(), ours ? grpc::INTERNAL : static_cast<grpc::StatusCode>(code));
    EXPECT_EQ(status.error_message(), "why");
  }
}

TEST(StatusMappingTest, LongMessagesAreCutBetweenCharacters) {
  std::string message(1, 'x');
  for (int i = 0; i < 1000; ++i) message += "\xc3\xa9";
  const std::string cut = ToGrpc(absl::InternalError(message)).error_message();
  EXPECT_EQ(cut.size(), 1023u);
  EXPECT_EQ(cut, message.substr(0, 1023));
}

}  // namespace
}  // namespace fox
