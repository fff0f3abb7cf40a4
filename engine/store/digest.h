// Digests of OpenSSL: SHA-256 for names, which clients must not be able to make equal, and Poly1305
// with a fixed key for checksums, because it is seven times as fast (12 GB/s a core) and misses a
// damaged chunk with a probability below 2^-80.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace fox {

using Sha256Digest = std::array<unsigned char, 32>;
using Checksum = std::array<unsigned char, 16>;
inline constexpr size_t kNamespaceDigits = 16;  // of a NamespaceName

// SHA-256 of all bytes added.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(const void* data, size_t bytes);
  // Adds the length, too, so that two texts differ from one.
  void AddText(const std::string& text);
  // The digest of the bytes so far; more may be added.
  Sha256Digest Get() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Checksum ChecksumOf(std::span<const std::byte> bytes);

std::string ToHex(const Sha256Digest& digest);

// The name of a namespace of the prefix cache, in the names of its files and for operators: the
// first 16 hexadecimal digits of the SHA-256 of its cache_salt.
std::string NamespaceName(const std::string& cache_salt);

}  // namespace fox
