// TlsFiles: a server's certificate, its key and the authorities of its clients, in PEM. What is
// wrong with them is told before anything is served; files that are replaced later count from the
// next connection on, or are logged and ignored when they are wrong.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "server/process/watched_files.h"

struct ssl_ctx_st;

namespace fox {

enum class ClientCertificate {
  kNone,      // not asked for
  kOptional,  // asked for; one that comes has to be valid
  kRequired,
};

struct TlsOptions {
  std::string certificate;  // the server's own first, then those that lead to its authority
  std::string key;          // without a passphrase
  std::string authorities;  // whose client certificates are valid; empty: ask for none
  ClientCertificate clients = ClientCertificate::kNone;
};

// What the files hold.
struct TlsMaterial {
  std::string certificate, key, authorities;
  // The same, ready for connections of HTTP/1.1: TLS 1.2 and 1.3 without renegotiation and without
  // resumption, so that a session never outlives its certificates.
  std::shared_ptr<ssl_ctx_st> context;
};

// All methods may be called from any thread.
class TlsFiles {
 public:
  // InvalidArgument names the flag: a file cannot be read or is not PEM, the certificate is expired
  // or not yet valid, key and certificate do not belong together, the key is too weak for the
  // system's policy. Logs a warning for a key that others may read.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Load(const TlsOptions& options);

  ClientCertificate clients() const { return options_.clients; }
  std::shared_ptr<const TlsMaterial> Current() const;
  // Reads files that were replaced. True: Current has changed.
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
