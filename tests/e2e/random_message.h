// RandomMessage: wire bytes of protobuf messages of any type with random fields, most of them
// wrong: numbers at the borders of every range, floats that are none, texts with NUL.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "google/protobuf/descriptor.h"

namespace fox {

class RandomMessage {
 public:
  explicit RandomMessage(uint64_t seed) : random_(seed) {}

  uint64_t Below(uint64_t n) { return random_() % n; }
  // About each sixth field.
  std::string Of(const google::protobuf::Descriptor* type, int depth = 0);
  // Changes up to three bytes, and cuts some off now and then.
  void Mutate(std::string* bytes);

 private:
  std::string Text();

  std::mt19937_64 random_;
};

}  // namespace fox
