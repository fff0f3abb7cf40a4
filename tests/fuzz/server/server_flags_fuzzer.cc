// The server's command line, one argument a line, and its environment, the lines FOX_NAME=VALUE:
// what is accepted is the same when it is said again in full on the command line, and what is
// refused names a flag. Hosts are numeric: a name would ask a resolver.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "server/server_flags.h"
#include "tests/fuzz/fuzz_target.h"

namespace fox {
namespace {

struct Parsed {
  Parsed(const std::vector<std::string>& arguments, const EnvironmentLookup& lookup) {
    RegisterServerFlags(&flags, &set);
    status = set.Parse(arguments, lookup);
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
         !IsNumeric(flags.metrics.listen.host) || !(IsNumeric(admin) || admin == "main");
}

void CheckRefused(const absl::Status& status) {
  FOX_CHECK(absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
            absl::IsUnavailable(status));
  FOX_CHECK(!status.message().empty() && status.message().size() <= 1024);
}

}  // namespace

void Fuzz(FuzzInput in) {
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(in.Rest(), '\n'))) {
    const size_t equals = line.find('=');
    if (absl::StartsWith(line, "FOX_") && equals != std::string::npos) {
      environment[line.substr(0, equals)] = line.substr(equals + 1);
    } else {
      arguments.push_back(line);
    }
  }
  const auto lookup = [&environment](const std::string& name) {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  };
  Parsed first(arguments, lookup);
  static const size_t help_bytes = first.set.Help().size();  // no input changes it, and it is slow
  FOX_CHECK(help_bytes > 1000);
  if (!first.status.ok()) return CheckRefused(first.status);
  std::vector<std::string> said;
  for (const auto& [name, value] : first.set.Values()) {
    const bool unset = value.empty() && name == "log-tolerance";
    if (!unset) said.push_back("--" + name + "=" + value);
  }
  Parsed again(said, nullptr);
  FOX_CHECK(again.status.ok());
  FOX_CHECK(again.set.Values() == first.set.Values());
  if (AsksResolver(first.flags)) return;
  const absl::Status complete = CompleteServerFlags(&first.flags);
  FOX_CHECK(complete == CompleteServerFlags(&again.flags));
  if (!complete.ok()) return CheckRefused(complete);
  FOX_CHECK(!first.flags.context.served_model_name.empty());
  FOX_CHECK(StrangersMayCall(first.flags) == StrangersMayCall(again.flags));
}

}  // namespace fox
