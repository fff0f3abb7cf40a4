// Sampling conversion: the fields of fox.v1 Sampling and Stopping, each checked against its range.
// Used by request_conversion.cc alone.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/request.h"
#include "fox/v1/inference.pb.h"
#include "server/calls/conversion_context.h"

namespace fox {

using WireIds = google::protobuf::RepeatedField<uint32_t>;

// Unimplemented when a reserved field of fox.v1 was sent.
absl::Status CheckReservedFields(const v1::GenerateRequest& request);

absl::Status ConvertSampling(const v1::Sampling& in, const SamplingDefaults& defaults,
                             int32_t vocab_size, SamplingParams* out);
absl::Status ConvertStopping(const v1::Stopping& in, const ConversionContext& context,
                             StopParams* out);
absl::Status ConvertStopStrings(const v1::Stopping& in, std::vector<std::string>* out);

// Ids in [0, vocab_size).
absl::Status ConvertIds(const WireIds& in, const char* field, int32_t vocab_size,
                        std::vector<int32_t>* out);
// `set` false gives -1: none.
absl::Status ConvertLogprobs(bool set, int32_t in, const char* field, int32_t most, int32_t* out);
absl::Status ConvertLogprobIds(const WireIds& in, const char* field, int32_t vocab_size,
                               std::vector<int32_t>* out);

}  // namespace fox
