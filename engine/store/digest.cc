// Digests: calls of OpenSSL. Read digest.h first.
#include "engine/store/digest.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "kernels/core/check.h"

namespace fox {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  EVP_MD_CTX* copy = EVP_MD_CTX_new();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  FOX_CHECK(state_->context != nullptr && state_->copy != nullptr);
  FOX_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(state_->context);
  EVP_MD_CTX_free(state_->copy);
}

void Sha256::Add(const void* data, size_t bytes) {
  FOX_CHECK(EVP_DigestUpdate(state_->context, data, bytes) == 1);
}

void Sha256::AddText(const std::string& text) {
  const uint64_t size = text.size();
  Add(&size, sizeof(size));
  Add(text.data(), text.size());
}

Sha256Digest Sha256::Get() const {
  Sha256Digest digest;
  FOX_CHECK(EVP_MD_CTX_copy_ex(state_->copy, state_->context) == 1);
  FOX_CHECK(EVP_DigestFinal_ex(state_->copy, digest.data(), nullptr) == 1);
  return digest;
}

Checksum ChecksumOf(std::span<const std::byte> bytes) {
  static EVP_MAC* const kMac = EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
  FOX_CHECK(kMac != nullptr);
  // Any key does: it is no secret. Poly1305 clears some bits of the first half.
  static constexpr std::array<unsigned char, 33> kKey = {"foxserve snapshot file, checksum"};
  EVP_MAC_CTX* const context = EVP_MAC_CTX_new(kMac);
  FOX_CHECK(context != nullptr);
  Checksum checksum;
  size_t size = 0;
  FOX_CHECK(EVP_MAC_init(context, kKey.data(), 32, nullptr) == 1);
  FOX_CHECK(EVP_MAC_update(context, reinterpret_cast<const unsigned char*>(bytes.data()),
                           bytes.size()) == 1);
  FOX_CHECK(EVP_MAC_final(context, checksum.data(), &size, checksum.size()) == 1);
  FOX_CHECK(size == checksum.size());
  EVP_MAC_CTX_free(context);
  return checksum;
}

std::string ToHex(const Sha256Digest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::string NamespaceName(const std::string& cache_salt) {
  Sha256 hash;
  hash.Add(cache_salt.data(), cache_salt.size());
  return ToHex(hash.Get()).substr(0, kNamespaceDigits);
}

}  // namespace fox
