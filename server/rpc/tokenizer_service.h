// TokenizerService: fox.v1.Tokenizer. A long text takes a while, on a thread of this
// service's own that yields to those that generate. A call that is cancelled, by its client, its
// deadline or a stop of the server, ends at once.
#pragma once

#include "fox/v1/tokenizer.grpc.pb.h"
#include "server/rpc/raw_service.h"

namespace fox {

class TokenizerService final : public RawService<v1::Tokenizer> {
 public:
  explicit TokenizerService(ServerCore& core);

 private:
  template <class Request>
  void ServeLater(const char* method);
};

}  // namespace fox
