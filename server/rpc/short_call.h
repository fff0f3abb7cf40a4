// AnswerShort: a call whose message is small and whose answer takes no time: all of it happens in
// its handler, on gRPC's thread.
#pragma once

#include <cstdint>
#include <utility>

#include "server/rpc/unary_reactor.h"
#include "server/rpc/wire.h"

namespace fox {

// Answers a call that was let in, or with `status`: `answer(request, &response)` gives the call's.
// Returns the reactor for the library.
template <class Request, class Response, class Answer>
grpc::ServerUnaryReactor* AnswerAdmitted(absl::Status status, ServerCore& core, CallInfo call,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes, grpc::ByteBuffer* out,
                                         Answer answer) {
  Request request;
  Response response;
  if (status.ok()) status = ParseShortMessage(*bytes, &request);
  if (status.ok()) status = answer(request, &response);
  auto* reactor = new AnswerReactor(core, context, out, std::move(call));
  reactor->Answer(std::move(status), response);
  return reactor;
}

// The same for a call that has yet to take its share of the budget.
template <class Request, class Response, class Answer>
grpc::ServerUnaryReactor* AnswerShort(ServerCore& core, CallInfo call,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* bytes, grpc::ByteBuffer* out,
                                      Answer answer) {
  absl::Status status = core.TakeShare(&call, static_cast<int64_t>(bytes->Length()));
  return AnswerAdmitted<Request, Response>(std::move(status), core, std::move(call), context, bytes,
                                           out, std::move(answer));
}

}  // namespace fox
