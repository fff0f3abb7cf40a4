// Random requests through real gRPC to every method of every service: messages with random fields,
// bytes of such messages, changed, and bytes that are none. Each is answered with a code that the
// protocol allows and a short text that names nothing of the machine; afterwards all is as before.
#include <array>
#include <atomic>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fox/v1/admin.pb.h"
#include "fox/v1/inference.pb.h"
#include "fox/v1/info.pb.h"
#include "fox/v1/tokenizer.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/wrappers.pb.h"
#include "server/rpc/method_policy.h"
#include "tests/e2e/random_message.h"
#include "tests/torture/part.h"
#include "tests/torture/raw_call.h"
#include "tests/torture/torture_server.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace fox {
namespace {

using google::protobuf::Message;

constexpr char kDrain[] = "/fox.v1.Admin/Drain";
constexpr char kUndrain[] = "/fox.v1.Admin/Undrain";

// A method and the type of its request; null: not of ours, its message is bytes.
struct Method {
  std::string path;
  const Message* request;
  bool generates, endless;
};

std::vector<Method> AllMethods() {
  // So that the linker keeps their descriptors.
  static_cast<void>(v1::DrainRequest::descriptor());
  static_cast<void>(v1::GetLoadRequest::descriptor());
  static_cast<void>(v1::TokenizeRequest::descriptor());
  static_cast<void>(vllm::grpc::engine::GenerateRequest::descriptor());
  std::vector<Method> methods;
  for (const MethodPolicy& policy : MethodPolicies()) {
    Method method{std::string(policy.path), nullptr, false, false};
    std::string name = method.path.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    const auto* descriptor =
        google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
    if (descriptor != nullptr) {
      method.request = google::protobuf::MessageFactory::generated_factory()->GetPrototype(
          descriptor->input_type());
    }
    method.generates = absl::StrContains(name, ".Generate");
    method.endless = absl::EndsWith(name, ".Watch");
    methods.push_back(method);
  }
  return methods;
}

struct Fuzz {
  Part* part;
  int64_t calls;
  std::vector<Method> methods;
  std::array<std::atomic<int64_t>, 17> codes{};
  std::atomic<int64_t> ended{0}, drains{0};
};

bool Allowed(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::OK:
    case grpc::INVALID_ARGUMENT:
    case grpc::OUT_OF_RANGE:
    case grpc::NOT_FOUND:
    case grpc::ALREADY_EXISTS:
    case grpc::FAILED_PRECONDITION:
    case grpc::RESOURCE_EXHAUSTED:
    case grpc::DEADLINE_EXCEEDED:
    case grpc::UNIMPLEMENTED:
      return true;
    case grpc::UNAVAILABLE:
      return status.error_message() == "the server is draining";
    default:
      return false;
  }
}

// Makes requests that get somewhere likelier, and their answers short.
void Tame(Message* message, RandomMessage* random) {
  if (auto* request = dynamic_cast<v1::GenerateRequest*>(message)) {
    if (random->Below(4) != 0) request->clear_model();
    if (random->Below(2) == 0) request->mutable_stopping()->set_max_tokens(5);
    if (random->Below(2) == 0) request->set_text("some text|");
  } else if (auto* vllm = dynamic_cast<vllm::grpc::engine::GenerateRequest*>(message)) {
    if (random->Below(2) == 0) vllm->mutable_sampling_params()->set_max_tokens(5);
    if (random->Below(2) == 0) vllm->set_text("some text|");
  } else if (auto* score = dynamic_cast<v1::ScoreRequest*>(message)) {
    if (random->Below(4) != 0) score->clear_model();
  }
}

std::string RandomBytes(const Method& method, RandomMessage* random) {
  std::string bytes;
  if (method.request == nullptr || random->Below(16) == 0) {
    bytes.resize(random->Below(40));
    for (char& c : bytes) c = static_cast<char>(random->Below(256));
    return bytes;
  }
  const std::unique_ptr<Message> message(method.request->New());
  random->Fill(message.get());
  Tame(message.get(), random);
  bytes = message->SerializePartialAsString();
  if (random->Below(2) == 0) random->Mutate(&bytes);
  return bytes;
}

RawRequest NextRequest(Fuzz* fuzz, RandomMessage* random) {
  const uint64_t kind = random->Below(64);
  // Mostly what has most fields.
  const Method* method = nullptr;
  do {
    method = &fuzz->methods[random->Below(fuzz->methods.size())];
  } while ((kind < 40 && !method->generates) || method->path == kDrain ||
           (method->endless && random->Below(16) != 0));
  RawRequest request{method->path, RandomBytes(*method, random), 20000};
  if (method->endless) request.deadline_ms = 5;
  if (kind == 63 && random->Below(8) == 0) request.method += "x";
  if (random->Below(20000) == 0) {
    request = {kDrain, "", 20000};
    ++fuzz->drains;
  }
  return request;
}

void StartRandom(Fuzz* fuzz, grpc::GenericStub& stub, const RawRequest& request,
                 std::function<void()> done) {
  RawCall::Start(
      stub, request, nullptr,
      [fuzz, &stub, method = request.method, done = std::move(done)](const grpc::Status& status,
                                                                     const grpc::ClientContext&) {
        ++fuzz->codes[static_cast<size_t>(status.error_code()) % fuzz->codes.size()];
        const std::string& text = status.error_message();
        fuzz->part->Check(Allowed(status),
                          absl::StrCat(method, " answers ", status.error_code(), " ", text));
        fuzz->part->Check(text.size() <= 1024, method + " says more than a KiB");
        fuzz->part->Check(!absl::StrContains(text, "/") && !absl::StrContains(text, "0x"),
                          absl::StrCat(method, " says ", text));
        fuzz->part->Tell(++fuzz->ended, fuzz->calls);
        // Who drains takes it back.
        if (method == kDrain) return StartRandom(fuzz, stub, {kUndrain, "", 20000}, done);
        done();
      });
}

}  // namespace

int TortureRequests(const Arguments& arguments) {
  Part part("requests");
  int64_t calls = 10000000;
  int open = 256, connections = 8;
  FlagSet flags;
  flags.Int("calls", "N", "requests", 1, int64_t{1} << 40, &calls);
  flags.Int("open", "N", "calls open at once", 1, 4096, &open);
  flags.Int("connections", "N", "connections", 1, 256, &connections);
  part.Parse(&flags, arguments);

  TortureServerOptions options;
  options.max_model_len = 128;
  TortureServer server(options);
  Fuzz fuzz{&part, calls, AllMethods(), {}, {}, {}};
  const Stubs stubs = server.ConnectStubs(connections);
  RunCalls(open, [&](int64_t index, std::function<void()> done) {
    if (index >= calls || part.OutOfTime()) return false;
    RandomMessage random(part.seed() << 40 ^ static_cast<uint64_t>(index));
    StartRandom(&fuzz, *stubs[static_cast<size_t>(index) % stubs.size()],
                NextRequest(&fuzz, &random), std::move(done));
    return true;
  });
  nlohmann::json codes;
  for (size_t code = 0; code < fuzz.codes.size(); ++code) {
    if (fuzz.codes[code] > 0) codes[std::to_string(code)] = fuzz.codes[code].load();
  }
  part.Set("calls", fuzz.ended.load());
  part.Set("codes", codes);
  part.Set("drains", fuzz.drains.load());
  part.Set("methods", fuzz.methods.size());
  part.Check(fuzz.codes[grpc::OK] * 50 > fuzz.ended, "hardly a request was right");
  part.Check(fuzz.codes[grpc::INVALID_ARGUMENT] * 20 > fuzz.ended, "hardly a request was wrong");
  part.Check(server.WaitIdle(), "not everything came back");
  part.Check(server.releases().slowest() <= 2, "pages came back after more than two steps");
  return part.Finish();
}

}  // namespace fox
