// The commands of fox-cli. Each takes the arguments after its name and returns an exit code
// (connection.h).
#pragma once

#include <string>
#include <vector>

namespace fox::cli {

int Generate(const std::vector<std::string>& arguments);
int Score(const std::vector<std::string>& arguments);
int Tokenize(const std::vector<std::string>& arguments);
int Detokenize(const std::vector<std::string>& arguments);
int Health(const std::vector<std::string>& arguments);
int Info(const std::vector<std::string>& arguments);
int Top(const std::vector<std::string>& arguments);
int Drain(const std::vector<std::string>& arguments);
int Undrain(const std::vector<std::string>& arguments);
int FlushCache(const std::vector<std::string>& arguments);

}  // namespace fox::cli
