// TlsFiles: see tls_files.h.
#include "server/process/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/steady_clock.h"
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
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;
using Bytes = std::unique_ptr<BIO, Freer<BIO_free_all>>;

absl::Status Wrong(const char* flag, const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " ", why));
}

// What the library last complained about; forgets it.
std::string LibraryReason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  std::string out = reason == nullptr ? "not accepted" : reason;
  ERR_clear_error();
  return out;
}

Bytes Open(const std::string& pem) {
  return Bytes(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Else the library asks on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

// The next certificate; null: there is none.
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

// As a server would use them: this is where the system's policy on weak keys speaks.
absl::Status CheckPair(const TlsMaterial& material, const TlsOptions& options) {
  const absl::Cleanup forget = [] { ERR_clear_error(); };
  const Certificate certificate = NextCertificate(Open(material.certificate).get());
  if (certificate == nullptr) {
    return Wrong(kCertificateFlag, options.certificate, "holds no PEM certificate");
  }
  absl::Status status = CheckValidity(certificate.get(), options.certificate);
  if (!status.ok()) return status;
  const Key key(PEM_read_bio_PrivateKey(Open(material.key).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return Wrong(kKeyFlag, options.key, "holds no PEM key, or one with a passphrase");
  }
  const Context context(SSL_CTX_new(TLS_server_method()));
  if (SSL_CTX_use_certificate(context.get(), certificate.get()) != 1) {
    return Wrong(kCertificateFlag, options.certificate, LibraryReason());
  }
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return Wrong(kKeyFlag, options.key,
                 absl::StrCat("is not the key of the certificate: ", LibraryReason()));
  }
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
  absl::Status status = CheckPair(out, options);
  if (!status.ok()) return status;
  if (!options.authorities.empty()) {
    absl::StatusOr<std::string> authorities = ReadOption(kAuthoritiesFlag, options.authorities);
    if (!authorities.ok()) return authorities.status();
    const absl::Cleanup forget = [] { ERR_clear_error(); };
    if (NextCertificate(Open(*authorities).get()) == nullptr) {
      return Wrong(kAuthoritiesFlag, options.authorities, "holds no PEM certificate");
    }
    out.authorities = *std::move(authorities);
  }
  return std::make_shared<const TlsMaterial>(std::move(out));
}

std::shared_ptr<const TlsMaterial> TlsFiles::Current() const {
  const MutexLock lock(mutex_);
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
