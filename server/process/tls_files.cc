// TlsFiles: reads PEM, checks it, and makes OpenSSL's context.
#include "server/process/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/steady_clock.h"
#include "kernels/core/check.h"
#include "server/process/log.h"

namespace fox {
namespace {

constexpr const char* kCertificateFlag = "--ssl-certfile";
constexpr const char* kKeyFlag = "--ssl-keyfile";
constexpr const char* kAuthoritiesFlag = "--ssl-ca-certs";

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Bytes = std::unique_ptr<BIO, Freer<BIO_free_all>>;

absl::Status Wrong(const char* flag, const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " ", why));
}

// Why OpenSSL refused a certificate. Clears its error.
const char* WhyRefused() {
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  ERR_clear_error();
  switch (reason) {
    case SSL_R_EE_KEY_TOO_SMALL:
    case SSL_R_CA_KEY_TOO_SMALL:
      return "has a key that is too small for the system's policy";
    case SSL_R_CA_MD_TOO_WEAK:
      return "has a signature that is too weak for the system's policy";
    default:
      return "is not accepted by the system's OpenSSL";
  }
}

Bytes Open(const std::string& pem) {
  return Bytes(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Without this callback OpenSSL asks for a passphrase on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

// Reads the next certificate; null: there is none.
Certificate NextCertificate(BIO* in) {
  return Certificate(PEM_read_bio_X509(in, nullptr, NoPassphrase, nullptr));
}

absl::Status CheckValidity(const X509* certificate, const std::string& path) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return Wrong(kCertificateFlag, path, "has expired");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return Wrong(kCertificateFlag, path, "is not valid yet");
  }
  return absl::OkStatus();
}

// Selects HTTP/1.1. A client that offers protocols has to offer this one.
int SelectHttp11(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                 const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* protocol = nullptr;
  const int found = SSL_select_next_proto(&protocol, chosen_size, kHttp11, sizeof(kHttp11) - 1,
                                          offered, offered_size);
  *chosen = protocol;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

std::shared_ptr<SSL_CTX> NewContext() {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return context;
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context.get(), "ECDHE+AESGCM:ECDHE+CHACHA20");  // of TLS 1.2
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                                         SSL_OP_IGNORE_UNEXPECTED_EOF);  // HTTP has lengths
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Otherwise a read continues while records without data arrive, and no other connection gets a
  // turn.
  SSL_CTX_clear_mode(context.get(), SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_alpn_select_cb(context.get(), SelectHttp11, nullptr);
  return context;
}

// Adds the server's certificate and key. Here OpenSSL applies the system's policy on weak keys.
absl::Status UsePair(const TlsMaterial& material, const TlsOptions& options) {
  FOX_CHECK(material.context != nullptr);
  const Bytes chain = Open(material.certificate);
  const Certificate certificate = NextCertificate(chain.get());
  if (certificate == nullptr) {
    return Wrong(kCertificateFlag, options.certificate, "holds no PEM certificate");
  }
  absl::Status status = CheckValidity(certificate.get(), options.certificate);
  if (!status.ok()) return status;
  const Key key(PEM_read_bio_PrivateKey(Open(material.key).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return Wrong(kKeyFlag, options.key, "holds no PEM key, or one with a passphrase");
  }
  SSL_CTX* const context = material.context.get();
  if (SSL_CTX_use_certificate(context, certificate.get()) != 1) {
    return Wrong(kCertificateFlag, options.certificate, WhyRefused());
  }
  while (const Certificate next = NextCertificate(chain.get())) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) {
      return Wrong(kCertificateFlag, options.certificate, WhyRefused());
    }
  }
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    return Wrong(kKeyFlag, options.key, "is not the key of the certificate");
  }
  return absl::OkStatus();
}

// Adds the authorities of client certificates.
absl::Status UseAuthorities(const TlsMaterial& material, const TlsOptions& options) {
  if (material.authorities.empty()) return absl::OkStatus();
  SSL_CTX* const context = material.context.get();
  const Bytes in = Open(material.authorities);
  int count = 0;
  for (; const Certificate next = NextCertificate(in.get()); ++count) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), next.get()) != 1 ||
        SSL_CTX_add_client_CA(context, next.get()) != 1) {
      return Wrong(kAuthoritiesFlag, options.authorities, WhyRefused());
    }
  }
  if (count == 0) return Wrong(kAuthoritiesFlag, options.authorities, "holds no PEM certificate");
  if (options.clients == ClientCertificate::kNone) return absl::OkStatus();
  const bool required = options.clients == ClientCertificate::kRequired;
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                     nullptr);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadOption(const char* flag, const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return Wrong(flag, path, text.status().message());
  return text;
}

}  // namespace

TlsFiles::TlsFiles(const TlsOptions& options)
    : options_(options), watched_({options.certificate, options.key, options.authorities}) {}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Load(const TlsOptions& options) {
  std::unique_ptr<TlsFiles> files(new TlsFiles(options));
  absl::StatusOr<std::shared_ptr<const TlsMaterial>> material = Read(options);
  if (!material.ok()) return material.status();
  if (WatchedFiles::ReadableByOthers(options.key)) {
    Log(LogLevel::kWarning, "every user of this machine may read the key", {{"file", options.key}});
  }
  const MutexLock lock(files->mutex_);
  files->current_ = *std::move(material);
  return files;
}

absl::StatusOr<std::shared_ptr<const TlsMaterial>> TlsFiles::Read(const TlsOptions& options) {
  TlsMaterial out;
  absl::StatusOr<std::string> certificate = ReadOption(kCertificateFlag, options.certificate);
  if (!certificate.ok()) return certificate.status();
  absl::StatusOr<std::string> key = ReadOption(kKeyFlag, options.key);
  if (!key.ok()) return key.status();
  out.certificate = *std::move(certificate);
  out.key = *std::move(key);
  if (!options.authorities.empty()) {
    absl::StatusOr<std::string> authorities = ReadOption(kAuthoritiesFlag, options.authorities);
    if (!authorities.ok()) return authorities.status();
    out.authorities = *std::move(authorities);
  }
  const absl::Cleanup forget = [] { ERR_clear_error(); };
  out.context = NewContext();
  if (out.context == nullptr) return absl::ResourceExhaustedError("no memory for TLS");
  absl::Status status = UsePair(out, options);
  if (status.ok()) status = UseAuthorities(out, options);
  if (!status.ok()) return status;
  return std::make_shared<const TlsMaterial>(std::move(out));
}

std::shared_ptr<const TlsMaterial> TlsFiles::Current() const {
  const MutexLock lock(mutex_);
  FOX_CHECK(current_ != nullptr);  // Load has set it, and Reload replaces it by another
  return current_;
}

bool TlsFiles::Reload() {
  if (!watched_.Changed(SteadySeconds())) return false;
  absl::StatusOr<std::shared_ptr<const TlsMaterial>> material = Read(options_);
  if (!material.ok()) {
    Log(LogLevel::kError, "new certificate refused, the old one stays",
        {{"reason", std::string(material.status().message())}});
    return false;
  }
  Log(LogLevel::kInfo, "certificate read again", {{"file", options_.certificate}});
  const MutexLock lock(mutex_);
  current_ = *std::move(material);
  return true;
}

}  // namespace fox
