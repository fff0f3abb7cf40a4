// Random ids: from the kernel, so that no client can predict another client's values.
#include "server/process/random_id.h"

#include <sys/random.h>

#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/uuid_io.hpp>

#include "kernels/core/check.h"

namespace fox {

uint64_t RandomSeed() {
  uint64_t value = 0;
  FOX_CHECK(getrandom(&value, sizeof(value), 0) == sizeof(value));  // whole up to 256 bytes
  return value;
}

std::string RandomUuid() { return to_string(boost::uuids::random_generator()()); }

}  // namespace fox
