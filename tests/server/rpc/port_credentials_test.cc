// Every method of the table over a real port, without a token and with each kind of token: which is
// refused has cost no message and no share of the budget.
#include "server/rpc/port_credentials.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "tests/engine/eval/run_program.h"
#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

TestCoreOptions WithTokens(int64_t max_calls = 64) {
  const std::string users = TempPath("users"), admins = TempPath("admins");
  std::string tokens;
  for (int i = 0; i < 16; ++i) absl::StrAppend(&tokens, "user-token-", i, "\n");
  WriteWhole(users, tokens);
  WriteWhole(admins, "admin-token-0\n");
  TestCoreOptions out;
  out.limits.max_calls = max_calls;
  out.limits.access = Access::Load(users, admins).value();
  return out;
}

void SetToken(grpc::ClientContext* context, const std::string& token) {
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
}

// The first thing a method answers: OK for a message, else its status. Without `message` only the
// headers are sent.
grpc::StatusCode CodeOf(const TestServer& server, const std::string& path, const std::string& token,
                        bool message = true) {
  grpc::GenericStub stub(server.channel);
  grpc::ClientContext context;
  SetTimeout(&context);
  SetToken(&context, token);
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto call = stub.PrepareCall(&context, path, &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  if (message) {
    call->WriteLast(grpc::ByteBuffer(nullptr, 0), grpc::WriteOptions(), nullptr);
    queue.Next(&tag, &ok);
  }
  grpc::ByteBuffer bytes;
  call->Read(&bytes, nullptr);
  queue.Next(&tag, &ok);
  if (ok) context.TryCancel();  // Watch would go on for ever
  grpc::Status status;
  call->Finish(&status, nullptr);
  bool finished = false;
  queue.Next(&tag, &finished);
  if (status.error_code() == grpc::UNAUTHENTICATED) {
    EXPECT_EQ(status.error_message(), "a valid token is needed");
  }
  return ok ? grpc::OK : status.error_code();
}

bool IsOpen(grpc::StatusCode code) {
  return code != grpc::UNAUTHENTICATED && code != grpc::PERMISSION_DENIED &&
         code != grpc::UNIMPLEMENTED && code != grpc::DEADLINE_EXCEEDED;
}

TEST(PortCredentialsTest, EveryMethodAgainstEveryKindOfToken) {
  const TestServer server(WithTokens());
  for (const MethodPolicy& policy : MethodPolicies()) {
    const bool is_public = policy.needed == Privilege::kPublic;
    for (const char* wrong : {"", "user-token-99", "user-token-0 "}) {
      const grpc::StatusCode code = CodeOf(server, policy.path, wrong);
      EXPECT_TRUE(is_public ? IsOpen(code) : code == grpc::UNAUTHENTICATED)
          << policy.path << " with \"" << wrong << "\": " << code;
    }
    if (!is_public) {  // which waits for no message
      EXPECT_EQ(CodeOf(server, policy.path, "", /*message=*/false), grpc::UNAUTHENTICATED)
          << policy.path;
    }
    const grpc::StatusCode user = CodeOf(server, policy.path, "user-token-0");
    EXPECT_TRUE(policy.needed == Privilege::kAdmin ? user == grpc::PERMISSION_DENIED : IsOpen(user))
        << policy.path << ": " << user;
    const grpc::StatusCode admin = CodeOf(server, policy.path, "admin-token-0");
    EXPECT_TRUE(IsOpen(admin)) << policy.path << ": " << admin;
  }
  EXPECT_TRUE(Eventually([&] { return server.core->calls().calls() == 0; }));
  EXPECT_EQ(server.core->refusals().count(), 0);  // by the budget
  EXPECT_GT(server.core->access->refused(), 0);
}

TEST(PortCredentialsTest, AMethodWithoutAPolicyIsNone) {
  const TestServer server(WithTokens()), open;
  const std::string path = "/fox.v1.Inference/Forgotten";
  EXPECT_EQ(CodeOf(server, path, ""), grpc::UNAUTHENTICATED);
  EXPECT_EQ(CodeOf(server, path, "user-token-0"), grpc::UNIMPLEMENTED);
  EXPECT_EQ(CodeOf(open, path, ""), grpc::UNIMPLEMENTED);
}

TEST(PortCredentialsTest, TwoAuthorizationsAreNone) {
  const TestServer server(WithTokens());
  grpc::ClientContext context;
  SetTimeout(&context);
  SetToken(&context, "user-token-99");
  SetToken(&context, "user-token-0");
  v1::Load load;
  EXPECT_EQ(v1::Info::NewStub(server.channel)->GetLoad(&context, {}, &load).error_code(),
            grpc::UNAUTHENTICATED);
}

// On one connection, too.
TEST(PortCredentialsTest, EachVerifiedTokenIsAClient) {
  TestServer server(WithTokens(/*max_calls=*/2));  // of which a client may have one
  const auto get_load = [&](const std::string& token) {
    grpc::ClientContext context;
    SetTimeout(&context);
    SetToken(&context, token);
    v1::Load load;
    return v1::Info::NewStub(server.channel)->GetLoad(&context, {}, &load).error_code();
  };
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(get_load(absl::StrCat("user-token-", i)), grpc::OK) << i;
    ASSERT_TRUE(Eventually([&] { return server.core->calls().calls() == 0; })) << i;
  }
  grpc::ClientContext context;
  SetTimeout(&context);
  SetToken(&context, "user-token-8");
  const std::unique_lock<std::mutex> hanging(server.script->step);
  auto held = server.inference->GenerateStream(&context, GreedyRequest("x", 2));
  ASSERT_TRUE(Eventually([&] { return server.core->calls().calls() == 1; }));
  EXPECT_EQ(get_load("user-token-8"), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(get_load("user-token-9"), grpc::OK);
}

// Where administrators have no tokens of their own, their address is what tells them.
TEST(PortCredentialsTest, AnAddressOfAdministratorsIsOpenToThem) {
  for (const bool own_tokens : {false, true}) {
    SCOPED_TRACE(own_tokens);
    TestCoreOptions options = WithTokens();
    if (!own_tokens) options.limits.access = Access::Load(TempPath("users"), "").value();
    GrpcServerOptions port;
    port.admin = AcceptorOptions();
    const TestServer server(options, port);
    const auto admin = v1::Admin::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server.server->admin_port()),
                            grpc::InsecureChannelCredentials()));
    const auto undrain = [&](const std::string& token) {
      grpc::ClientContext context;
      SetTimeout(&context);
      SetToken(&context, token);
      v1::UndrainResponse response;
      return admin->Undrain(&context, {}, &response).error_code();
    };
    EXPECT_EQ(undrain(""), own_tokens ? grpc::UNAUTHENTICATED : grpc::OK);
    EXPECT_EQ(undrain("admin-token-0"), grpc::OK);
    EXPECT_EQ(CodeOf(server, "/fox.v1.Admin/Undrain", "user-token-0"), grpc::PERMISSION_DENIED);
  }
}

}  // namespace
}  // namespace fox
