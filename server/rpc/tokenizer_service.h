// TokenizerService: fox.v1.Tokenizer. A long text takes a while, on a thread of this
// service's own that yields to those that generate. A call that is cancelled, by its client, its
// deadline or a stop of the server, ends at once.
#pragma once

#include "fox/v1/tokenizer.grpc.pb.h"
#include "server/rpc/wire.h"

namespace fox {

using RawTokenizer = v1::Tokenizer::WithRawCallbackMethod_Tokenize<
    v1::Tokenizer::WithRawCallbackMethod_Detokenize<v1::Tokenizer::Service>>;

class TokenizerService final : public RawTokenizer {
 public:
  // `core` must outlive the server this is registered with.
  explicit TokenizerService(ServerCore& core) : core_(core) {}

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  ServerCore& core_;
};

}  // namespace fox
