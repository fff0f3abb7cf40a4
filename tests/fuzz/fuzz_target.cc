// A fuzz target as libFuzzer calls it.
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fox::Fuzz(fox::FuzzInput(data, size));
  return 0;
}
