// The server's command line, one argument a line: what is accepted is the same when it is said
// again in full, and what is refused names a flag. Hosts are numeric: a name would ask a resolver.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "server/server_flags.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

struct Parsed {
  explicit Parsed(const std::vector<std::string>& arguments) {
    RegisterServerFlags(&flags, &set);
    status = set.Parse(arguments, nullptr);
  }
  ServerFlags flags;
  FlagSet set;
  absl::Status status;
};

bool IsNumeric(const std::string& host) {
  return host.empty() || host.find_first_not_of("0123456789.:[]") == std::string::npos;
}

bool AsksResolver(const ServerFlags& flags) {
  const std::string& admin = flags.admin_address;
  return !IsNumeric(flags.grpc.listen.host) || !IsNumeric(flags.http.listen.host) ||
         !IsNumeric(flags.metrics.host) || !(IsNumeric(admin) || admin == "main");
}

void CheckRefused(const absl::Status& status) {
  FOX_CHECK(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
            absl::IsUnavailable(status));
  FOX_CHECK(!status.message().empty() && status.message().size() <= 1024);
}

void Fuzz(FuzzInput in) {
  const std::vector<std::string> arguments = absl::StrSplit(in.Rest(), '\n');
  Parsed first(arguments);
  FOX_CHECK(first.set.Help().size() > 1000);
  if (!first.status.ok()) return CheckRefused(first.status);
  std::vector<std::string> said;
  for (const auto& [name, value] : first.set.Values()) {
    const bool unset = value.empty() && name == "log-tolerance";
    if (!unset) said.push_back("--" + name + "=" + value);
  }
  Parsed again(said);
  FOX_CHECK(again.status.ok());
  FOX_CHECK(again.set.Effective() == first.set.Effective());
  if (AsksResolver(first.flags)) return;
  const absl::Status complete = CompleteServerFlags(&first.flags);
  FOX_CHECK(complete == CompleteServerFlags(&again.flags));
  if (!complete.ok()) return CheckRefused(complete);
  FOX_CHECK(!first.flags.context.served_model_name.empty());
  FOX_CHECK(StrangersMayCall(first.flags) == StrangersMayCall(again.flags));
}

}  // namespace
}  // namespace fox

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fox::Fuzz(fox::FuzzInput(data, size));
  return 0;
}
