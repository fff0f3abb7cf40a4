// Two tenants over all interfaces of one server: request ids of one mean nothing to the other, and
// no client names itself in front of its gateway.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/test_server.h"
#include "tests/engine/eval/run_program.h"

namespace fox {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kId[] = "order-1";
const std::string kA = "Bearer token-of-a", kB = "Bearer token-of-b",
                  kAdministrator = "Bearer token-of-admin";

v1::GenerateRequest WithId(uint32_t tokens) {
  v1::GenerateRequest request = GreedyRequest("hello", tokens);
  request.set_request_id(kId);
  return request;
}

// Over gRPC and HTTP.
class TenantsTest : public ::testing::Test {
 protected:
  void Serve(const TestCoreOptions& options) {
    server_ = std::make_unique<TestServer>(options);
    server_->script->step_delay_us = 1000;
  }
  void ServeWithTokens() {
    WriteWhole(TempPath("users"), "token-of-a\ntoken-of-b\n");
    WriteWhole(TempPath("admins"), "token-of-admin\n");
    TestCoreOptions options;
    options.limits.access = Access::Load(TempPath("users"), TempPath("admins")).value();
    Serve(options);
  }
  // A stream that runs until it is ended.
  std::unique_ptr<OpenStream> Run(const std::string& authorization) {
    auto stream = std::make_unique<OpenStream>(server_->channel, WithId(4000), authorization);
    v1::GenerateDelta event;
    EXPECT_TRUE(stream->Read(&event));
    return stream;
  }

  std::vector<std::string> Abort(const std::string& authorization) {
    grpc::ClientContext context;
    SetTimeout(&context);
    context.AddMetadata("authorization", authorization);
    v1::AbortRequest request;
    request.add_request_ids(kId);
    v1::AbortResponse response;
    EXPECT_TRUE(server_->inference->Abort(&context, request, &response).ok());
    return {response.aborted().begin(), response.aborted().end()};
  }
  grpc::StatusCode Generate(const std::string& authorization) {
    grpc::ClientContext context;
    SetTimeout(&context);
    context.AddMetadata("authorization", authorization);
    v1::GenerateResponse response;
    return server_->inference->Generate(&context, WithId(2), &response).error_code();
  }
  int Complete(const std::string& headers) {
    HttpClient client = server_->ConnectHttp();
    client.SendRequest("POST", "/v1/completions", R"({"prompt":"hello","max_tokens":2})", headers);
    return client.Read().status;
  }
  int CompleteAs(const std::string& authorization) {
    return Complete(
        absl::StrCat("X-Request-Id: ", kId, "\r\nAuthorization: ", authorization, "\r\n"));
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(TenantsTest, AnIdOfAnotherTenantEndsNothing) {
  ServeWithTokens();
  const auto a = Run(kA);
  EXPECT_THAT(Abort(kB), IsEmpty());
  EXPECT_EQ(server_->engine->stats().aborted, 0);
  EXPECT_THAT(Abort(kA), ElementsAre(kId));
  EXPECT_TRUE(a->End().ok());
  EXPECT_EQ(a->reason, v1::ABORT);
}

TEST_F(TenantsTest, AnIdOfAnotherTenantIsFree) {
  ServeWithTokens();
  const auto a = Run(kA);
  EXPECT_EQ(Generate(kA), grpc::ALREADY_EXISTS);
  EXPECT_EQ(CompleteAs(kA), 409);
  EXPECT_EQ(Generate(kB), grpc::OK);
  EXPECT_EQ(CompleteAs(kB), 200);
  EXPECT_EQ(server_->engine->stats().aborted, 0);
}

TEST_F(TenantsTest, AnAdministratorEndsTheRequestsOfAll) {
  ServeWithTokens();
  const auto a = Run(kA), b = Run(kB);
  EXPECT_THAT(Abort(kAdministrator), ElementsAre(kId));
  EXPECT_TRUE(a->End().ok());
  EXPECT_EQ(a->reason, v1::ABORT);
  EXPECT_TRUE(b->End().ok());
  EXPECT_EQ(b->reason, v1::ABORT);
  EXPECT_THAT(Abort(kAdministrator), IsEmpty());
}

}  // namespace
}  // namespace fox
