// AnswerShort: a call whose message is small and whose answer takes no time: all of it happens in
// its handler, on gRPC's thread.
#pragma once

#include <cstdint>
#include <utility>

#include "server/unary_reactor.h"
#include "server/wire.h"

namespace fox {

// `answer(request, &response)` gives the status. Returns the reactor for the library.
template <class Request, class Response, class Answer>
grpc::ServerUnaryReactor* AnswerShort(ServerCore& core, CallInfo call,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* bytes, grpc::ByteBuffer* out,
                                      Answer answer) {
  Request request;
  Response response;
  absl::Status status = core.TakeShare(&call, static_cast<int64_t>(bytes->Length()));
  if (status.ok()) status = ParseShortMessage(*bytes, &request);
  if (status.ok()) status = answer(request, &response);
  auto* reactor = new AnswerReactor(core, context, out, std::move(call));
  reactor->Answer(std::move(status), response);
  return reactor;
}

}  // namespace fox
