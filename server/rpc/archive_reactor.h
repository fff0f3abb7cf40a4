// ArchiveReactor: the end of a GetTokenizer: sends an archive in chunks, one write at a time, once
// it was made on a thread that may take a while. Read vllm_service.h next.
#pragma once

#include <memory>

#include "server/rpc/call_reactor.h"
#include "server/rpc/tokenizer_archive.h"

namespace fox {

class ArchiveReactor final : public CallReactor {
 public:
  using Archive = std::shared_ptr<const TokenizerArchive>;
  using CallReactor::CallReactor;

  // Begins to send, or ends the call with a refusal, unless the call is over. Once, on any thread.
  void Send(absl::StatusOr<Archive> archive);

  void OnWriteDone(bool ok) override;

 private:
  void WriteNext();

  Archive archive_;
  size_t sent_ = 0;  // bytes of the archive, the write in flight included
};

}  // namespace fox
