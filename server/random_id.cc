// Random ids: one generator a thread, seeded by the system.
#include "server/random_id.h"

#include <cstdio>
#include <random>

namespace fox {

uint64_t RandomSeed() {
  static thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

std::string RandomUuid() {
  const uint64_t high = (RandomSeed() & ~uint64_t{0xf000}) | 0x4000;
  const uint64_t low = (RandomSeed() & ~(uint64_t{3} << 62)) | (uint64_t{2} << 62);
  char text[37];
  std::snprintf(text, sizeof(text), "%08x-%04x-%04x-%04x-%012llx",
                static_cast<unsigned>(high >> 32), static_cast<unsigned>((high >> 16) & 0xffff),
                static_cast<unsigned>(high & 0xffff), static_cast<unsigned>(low >> 48),
                static_cast<unsigned long long>(low & 0xffffffffffffULL));
  return text;
}

}  // namespace fox
