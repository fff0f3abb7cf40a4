// TokenizerService: fox.v1.Tokenizer. Work is done on the admission pool: a long text takes a
// while.
#pragma once

#include "fox/v1/tokenizer.grpc.pb.h"
#include "server/wire.h"

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
