// PortCredentials: written against the C API, because the C++ API takes a processor of metadata
// with TLS only, and certificates that never change. See port_credentials.h.
#include "server/rpc/port_credentials.h"

#include <string>
#include <utility>

#include "engine/base/steady_clock.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "kernels/core/check.h"

namespace fox {
namespace {

// Lives as long as the library's credentials, which a server keeps.
struct Endpoint {
  std::shared_ptr<TlsFiles> tls;
  std::shared_ptr<Access> access;
  std::shared_ptr<PublicCallLimit> limit;
  // The library's own copy. The acceptor's thread sets up connections one at a time.
  std::shared_ptr<const TlsMaterial> given = nullptr;
};

absl::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

absl::Status CheckCall(const Endpoint& endpoint, const void* connection,
                       const grpc_metadata* fields, size_t count) {
  absl::string_view path, authorization, client;
  int tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view key = View(fields[i].key);
    if (key == ":path") path = View(fields[i].value);
    if (key == endpoint.limit->client_metadata()) client = View(fields[i].value);
    if (key != "authorization") continue;
    ++tokens;
    authorization = View(fields[i].value);
  }
  const MethodPolicy* policy = FindMethodPolicy(path);
  // Only a client that may call known methods learns that a method is unknown.
  const Privilege needed = policy == nullptr ? Privilege::kUser : policy->needed;
  const char* method = policy == nullptr ? "unknown" : policy->path;
  absl::Status status;
  if (endpoint.access != nullptr) {
    status = endpoint.access->Check(needed, method, tokens > 1 ? "" : authorization);
  }
  if (status.ok() && policy == nullptr) status = absl::UnimplementedError("no such method");
  if (needed == Privilege::kPublic &&
      !endpoint.limit->Enter(PublicCallLimit::ClientOf(connection, client), SteadySeconds())) {
    status = absl::ResourceExhaustedError("too many health checks of this client at once");
  }
  return status;
}

// As grpc_auth_metadata_processor asks: answers before it returns.
void Process(void* state, grpc_auth_context* connection, const grpc_metadata* fields, size_t count,
             grpc_process_auth_metadata_done_cb done, void* call) {
  const absl::Status status = CheckCall(*static_cast<Endpoint*>(state), connection, fields, count);
  const std::string message(status.message());
  done(call, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()), message.c_str());
}

// As grpc_ssl_server_certificate_config_callback asks, at the start and for each connection.
grpc_ssl_certificate_config_reload_status Fetch(void* state,
                                                grpc_ssl_server_certificate_config** config) {
  auto* endpoint = static_cast<Endpoint*>(state);
  endpoint->tls->Reload();
  std::shared_ptr<const TlsMaterial> now = endpoint->tls->Current();
  if (now == endpoint->given) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair{now->key.c_str(), now->certificate.c_str()};
  // The library ends the process without any, and uses none where no client is asked.
  const std::string& authorities = now->authorities.empty() ? now->certificate : now->authorities;
  *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
  endpoint->given = std::move(now);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

grpc_ssl_client_certificate_request_type RequestOf(ClientCertificate clients) {
  if (clients == ClientCertificate::kNone) return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  return clients == ClientCertificate::kOptional
             ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
             : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

class Credentials final : public grpc::ServerCredentials {
 public:
  Credentials(std::shared_ptr<TlsFiles> tls, std::shared_ptr<Access> access,
              std::shared_ptr<PublicCallLimit> limit) {
    auto* endpoint = new Endpoint{std::move(tls), std::move(access), std::move(limit)};
    credentials_ = endpoint->tls == nullptr
                       ? grpc_insecure_server_credentials_create()
                       : grpc_ssl_server_credentials_create_with_options(
                             grpc_ssl_server_credentials_create_options_using_config_fetcher(
                                 RequestOf(endpoint->tls->clients()), Fetch, endpoint));
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_,
        {Process, [](void* state) { delete static_cast<Endpoint*>(state); }, endpoint});
  }
  ~Credentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    FOX_CHECK(false);  // it has one
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> PortCredentials(std::shared_ptr<TlsFiles> tls,
                                                         std::shared_ptr<Access> access,
                                                         std::shared_ptr<PublicCallLimit> limit) {
  return std::make_shared<Credentials>(std::move(tls), std::move(access), std::move(limit));
}

}  // namespace fox
