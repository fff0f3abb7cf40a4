// Names of an enum's values, as words of one string.
#pragma once

#include <sstream>
#include <string>

namespace fox::sim {

template <typename Enum>
std::string NameIn(const char* names, Enum value) {
  std::istringstream words(names);
  std::string name;
  for (int i = 0; i <= static_cast<int>(value); ++i) words >> name;
  return name;
}

}  // namespace fox::sim
