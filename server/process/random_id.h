// Random request ids and seeds, for callers that give none. An id cannot be predicted from other
// ids, because a client that knows an id may end its request. Any thread may call.
#pragma once

#include <cstdint>
#include <string>

namespace fox {

uint64_t RandomSeed();

// A random UUID (version 4), 36 characters.
std::string RandomUuid();

}  // namespace fox
