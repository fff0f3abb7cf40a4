// TlsFiles: a server's certificate, its key and the authorities of its clients, in PEM. A fault in
// them ends the start. Files that are replaced later apply from the next connection on; if they are
// faulty, they are logged and ignored.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "server/process/watched_files.h"

struct ssl_ctx_st;

namespace fox {

enum class ClientCertificate {
  kNone,      // not requested
  kOptional,  // requested; a client may send none, but no invalid one
  kRequired,
};

struct TlsOptions {
  std::string certificate;  // the server's own first, then the chain to its authority
  std::string key;          // without a passphrase
  std::string authorities;  // of client certificates; empty: none are requested
  ClientCertificate clients = ClientCertificate::kNone;
};

// The files' contents.
struct TlsMaterial {
  std::string certificate, key, authorities;
  // Made of them, for connections of HTTP/1.1: TLS 1.2 and 1.3 without renegotiation and without
  // resumption, so that a session never outlives its certificates.
  std::shared_ptr<ssl_ctx_st> context;
};

// All methods may be called from any thread.
class TlsFiles {
 public:
  // InvalidArgument names the flag: a file cannot be read or is not PEM, the certificate is expired
  // or not yet valid, key and certificate do not match, the key is too weak for the system's
  // policy. Logs a warning if other users may read the key.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Load(const TlsOptions& options);

  ClientCertificate clients() const { return options_.clients; }
  std::shared_ptr<const TlsMaterial> Current() const;
  // Reads replaced files again. True if Current has changed.
  bool Reload();

 private:
  explicit TlsFiles(const TlsOptions& options);
  static absl::StatusOr<std::shared_ptr<const TlsMaterial>> Read(const TlsOptions& options);

  const TlsOptions options_;
  WatchedFiles watched_;
  mutable Mutex mutex_;
  std::shared_ptr<const TlsMaterial> current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fox
