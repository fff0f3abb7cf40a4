// The method policy: one row for each method of gRPC. See port_credentials.h.
#include <algorithm>

#include "server/rpc/port_credentials.h"

namespace fox {
namespace {

constexpr MethodPolicy kPolicies[] = {
    {"/fox.v1.Inference/Generate", Privilege::kUser},
    {"/fox.v1.Inference/GenerateStream", Privilege::kUser},
    {"/fox.v1.Inference/Score", Privilege::kUser},
    {"/fox.v1.Inference/Abort", Privilege::kUser},
    {"/fox.v1.Tokenizer/Tokenize", Privilege::kUser},
    {"/fox.v1.Tokenizer/Detokenize", Privilege::kUser},
    {"/fox.v1.Info/GetServerInfo", Privilege::kUser},
    {"/fox.v1.Info/GetModelInfo", Privilege::kUser},
    {"/fox.v1.Info/GetLoad", Privilege::kUser},
    {"/fox.v1.Admin/Drain", Privilege::kAdmin},
    {"/fox.v1.Admin/Undrain", Privilege::kAdmin},
    {"/fox.v1.Admin/FlushCache", Privilege::kAdmin},
    // Probes have no token. Watch and reflection keep a stream, and no stranger may keep anything.
    {"/grpc.health.v1.Health/Check", Privilege::kPublic},
    {"/grpc.health.v1.Health/Watch", Privilege::kUser},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Privilege::kUser},
};

}  // namespace

absl::Span<const MethodPolicy> MethodPolicies() { return kPolicies; }

const MethodPolicy* FindMethodPolicy(absl::string_view path) {
  const MethodPolicy* found = std::find_if(std::begin(kPolicies), std::end(kPolicies),
                                           [&](const auto& row) { return row.path == path; });
  return found == std::end(kPolicies) ? nullptr : found;
}

}  // namespace fox
