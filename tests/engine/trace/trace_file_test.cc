// TraceFile: whole JSON after every write, within its bytes.
#include "engine/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "nlohmann/json.hpp"

namespace fox {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class TraceFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<TraceFile> Open(int64_t max_bytes = TraceFile::kMaxBytes) {
    absl::StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Create(
        path_, [this](const char* reason) { ends_.push_back(reason); }, max_bytes);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  // Fails when the file is not whole.
  Json Events() const {
    std::ifstream file(path_);
    return Json::parse(file).at("traceEvents");
  }

  const std::string path_ = ::testing::TempDir() + "/trace_file_test.json";
  std::vector<std::string> ends_;
};

TEST_F(TraceFileTest, TheFileIsWholeAfterEveryWrite) {
  const std::unique_ptr<TraceFile> file = Open();
  for (size_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(Events().size(), i);  // the first one names the process
    file->Add("{\"ph\":\"i\",\"name\":\"x\"}");
    EXPECT_EQ(Events().size(), i);
    file->Flush();
  }
}

TEST_F(TraceFileTest, ItEndsWithinItsBytesAndSaysSo) {
  constexpr int64_t kMax = 2000;
  std::unique_ptr<TraceFile> file = Open(kMax);
  for (int i = 0; i < 1000; ++i) file->Add("{\"ph\":\"i\",\"name\":\"event\"}");
  file->Flush();
  const size_t events = Events().size();
  EXPECT_GT(events, 30u);
  EXPECT_EQ(Events().back()["args"]["labels"], "the trace is full");
  EXPECT_LE(std::filesystem::file_size(path_), kMax);
  file->Add("{}");
  file.reset();
  EXPECT_EQ(Events().size(), events);
  EXPECT_EQ(ends_, std::vector<std::string>{"the trace is full"});
}

TEST_F(TraceFileTest, AFileThatCannotBeWrittenIsRefused) {
  for (const char* path : {"/no-such-directory/trace.json", "/dev/full"}) {
    const absl::Status status = TraceFile::Create(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--trace")) << path;
  }
}

}  // namespace
}  // namespace fox
