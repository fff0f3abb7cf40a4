// Every method of every service that a server registers has a policy, and no policy is of a method
// that is none: the server itself is asked for its services.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/rpc/port_credentials.h"
#include "tests/fixtures/test_server.h"

namespace fox {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::ServiceDescriptor;

constexpr const char* kReflection = "grpc.reflection.v1alpha.ServerReflection";

const Descriptor* ReflectionMessage(const std::string& name) {
  return DescriptorPool::generated_pool()->FindMessageTypeByName("grpc.reflection.v1alpha." + name);
}

std::set<std::string> RegisteredServices(const TestServer& server) {
  auto* factory = google::protobuf::MessageFactory::generated_factory();
  const Descriptor* type = ReflectionMessage("ServerReflectionResponse");
  const std::unique_ptr<Message> response(factory->GetPrototype(type)->New());
  // ServerReflectionRequest{list_services: "*"} is field 7.
  std::string bytes;
  Exchange(server.channel, std::string("/") + kReflection + "/ServerReflectionInfo", "\x3a\x01*",
           &bytes);
  EXPECT_TRUE(response->ParseFromString(bytes));
  const Message& list = response->GetReflection()->GetMessage(
      *response, type->FindFieldByName("list_services_response"));
  const auto* services = list.GetDescriptor()->FindFieldByName("service");
  std::set<std::string> names;
  for (int i = 0; i < list.GetReflection()->FieldSize(list, services); ++i) {
    const Message& service = list.GetReflection()->GetRepeatedMessage(list, services, i);
    names.insert(service.GetReflection()->GetString(
        service, service.GetDescriptor()->FindFieldByName("name")));
  }
  return names;
}

std::set<std::string> PathsOf(const std::string& service) {
  // Registered by the paths of its methods: it has no descriptor.
  if (service == "grpc.health.v1.Health") {
    return {"/" + service + "/Check", "/" + service + "/Watch"};
  }
  const ServiceDescriptor* descriptor =
      DescriptorPool::generated_pool()->FindServiceByName(service);
  EXPECT_NE(descriptor, nullptr) << service << " has no descriptor: write its methods down here";
  std::set<std::string> paths;
  for (int i = 0; descriptor != nullptr && i < descriptor->method_count(); ++i) {
    paths.insert("/" + service + "/" + descriptor->method(i)->name());
  }
  return paths;
}

TEST(MethodPolicyTest, TheTableIsWhatIsRegistered) {
  const TestServer server;
  const std::set<std::string> services = RegisteredServices(server);
  EXPECT_THAT(services, ::testing::IsSupersetOf(
                            {std::string("fox.v1.Inference"), std::string("fox.v1.Admin"),
                             std::string("grpc.health.v1.Health"), std::string(kReflection)}));
  std::set<std::string> registered, listed;
  for (const std::string& service : services) registered.merge(PathsOf(service));
  for (const MethodPolicy& policy : MethodPolicies()) {
    EXPECT_TRUE(listed.insert(policy.path).second) << policy.path << " is there twice";
    EXPECT_EQ(FindMethodPolicy(policy.path), &policy) << policy.path;
  }
  EXPECT_EQ(listed, registered);
}

TEST(MethodPolicyTest, OnlyTheWholePathCounts) {
  for (const char* path :
       {"", "/", "/fox.v1.Inference/", "/fox.v1.Inference/Generat", "/fox.v1.Inference/Generate/",
        "fox.v1.Inference/Generate", "/fox.v1.inference/Generate", "/fox.v1.Inference/Generate?"}) {
    EXPECT_EQ(FindMethodPolicy(path), nullptr) << path;
  }
}

}  // namespace
}  // namespace fox
