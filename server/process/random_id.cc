// Random ids: from the kernel, so that nothing that a client sees tells what others get.
#include "server/process/random_id.h"

#include <sys/random.h>

#include <cstdio>

#include "kernels/core/check.h"

namespace fox {

uint64_t RandomSeed() {
  uint64_t value = 0;
  FOX_CHECK(getrandom(&value, sizeof(value), 0) == sizeof(value));  // whole up to 256 bytes
  return value;
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
