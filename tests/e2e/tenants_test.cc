// Two tenants over all interfaces of one server: a tenant's request ids mean nothing to another
// tenant, and the load tells a tenant nothing about others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/eval/run_program.h"
#include "tests/fixtures/test_server.h"

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
  // A long stream that has begun.
  std::unique_ptr<OpenStream> Run(const std::string& authorization) {
    const std::map<std::string, std::string> metadata = {{"authorization", authorization}};
    auto stream = std::make_unique<OpenStream>(server_->channel, WithId(4000), metadata);
    v1::GenerateDelta event;
    EXPECT_TRUE(stream->Read(&event));
    return stream;
  }

  std::vector<std::string> Abort(const std::string& authorization) {
    grpc::ClientContext context;
    SetTimeout(&context);
    context.AddMetadata("authorization", authorization);
    v1::AbortRequest request;
    for (int i = 0; i < 2; ++i) request.add_request_ids(kId);  // it is answered once
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
  int CompleteAs(const std::string& authorization) {
    HttpClient client = server_->ConnectHttp();
    client.SendRequest(
        "POST", "/v1/completions", R"({"prompt":"hello","max_tokens":2})",
        absl::StrCat("X-Request-Id: ", kId, "\r\nAuthorization: ", authorization, "\r\n"));
    return client.Read().status;
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(TenantsTest, AnIdBelongsToItsTenantAndToAdministrators) {
  ServeWithTokens();
  const auto a = Run(kA);
  EXPECT_EQ(Generate(kA), grpc::ALREADY_EXISTS);
  EXPECT_EQ(CompleteAs(kA), 200);  // HTTP's name is not the whole id
  EXPECT_EQ(Generate(kB), grpc::OK);
  EXPECT_EQ(CompleteAs(kB), 200);
  EXPECT_THAT(Abort(kB), IsEmpty());
  EXPECT_EQ(server_->engine->stats().aborted, 0);
  const auto reason = [](OpenStream& stream) {
    EXPECT_TRUE(stream.End().ok());
    return stream.finishes.at(0).reason();
  };
  EXPECT_THAT(Abort(kA), ElementsAre(kId));
  EXPECT_EQ(reason(*a), v1::ABORT);
  const auto again = Run(kA), b = Run(kB);
  EXPECT_THAT(Abort(kAdministrator), ElementsAre(kId));
  EXPECT_EQ(reason(*again), v1::ABORT);
  EXPECT_EQ(reason(*b), v1::ABORT);
  EXPECT_THAT(Abort(kAdministrator), IsEmpty());
}

// Totals before and after a call would show exactly what another tenant does.
TEST_F(TenantsTest, TheLoadTellsATenantNothingOfOthers) {
  const auto load = [&](const std::string& key, const std::string& value) {
    grpc::ClientContext context;
    SetTimeout(&context);
    if (!key.empty()) context.AddMetadata(key, value);
    v1::Load out;
    EXPECT_TRUE(v1::Info::NewStub(server_->channel)->GetLoad(&context, {}, &out).ok());
    return out;
  };
  const auto set = [](const v1::Load& out) {
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    out.GetReflection()->ListFields(out, &fields);
    std::set<std::string> names;
    for (const auto* field : fields) names.insert(field->name());
    return names;
  };
  ServeWithTokens();
  EXPECT_EQ(Generate(kB), grpc::OK);
  server_->script->step_delay_us = 20000;  // slow, so that it is not paused soon
  const auto running = Run(kB);
  for (const std::string& user : {kA, kB}) {
    SCOPED_TRACE(user);
    EXPECT_TRUE(Eventually([&] { return load("authorization", user).running() == 1; }));
    const v1::Load seen = load("authorization", user);
    EXPECT_THAT(set(seen), ::testing::IsSubsetOf({"running", "waiting", "queue_s", "partial"}));
    EXPECT_TRUE(seen.partial());
  }
  const v1::Load all = load("authorization", kAdministrator);
  EXPECT_FALSE(all.partial());
  EXPECT_GT(all.generated_tokens(), 0u);
  EXPECT_GT(all.requests_finished(), 0u);

  // Without tokens all clients on loopback are administrators, except clients that a gateway names.
  TestCoreOptions options;
  options.limits.client_metadata = "x-client";
  Serve(options);
  EXPECT_TRUE(load("x-client", "a").partial());
  EXPECT_FALSE(load("", "").partial());
}

}  // namespace
}  // namespace fox
