// Runs one of our programs as a user would, and keeps its output. Programs are found through
// FOX_BINARY_DIR.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace fox {

struct Ran {
  int status = -1;  // exit status; -1: ended by a signal
  std::string out, err;
};

inline std::string ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// A path in the tests' temporary folder; tests of one program may run at the same time.
inline std::string TempPath(const std::string& name) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return ::testing::TempDir() + "/" + test->test_suite_name() + "." + test->name() + "." + name;
}

inline void WriteWhole(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// REQUIRES: arguments hold no quotes.
inline Ran RunProgram(const std::string& program, const std::vector<std::string>& arguments) {
  const std::string out = TempPath("stdout"), err = TempPath("stderr");
  std::string command = std::string("'") + FOX_BINARY_DIR + "/bin/" + program + "'";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  command += " >'" + out + "' 2>'" + err + "' </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadWhole(out), ReadWhole(err)};
}

}  // namespace fox
