// LineWriter: if the reader stops or leaves, lines are dropped and no writer waits.
#include "server/process/line_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>

namespace fox {
namespace {

using ::testing::HasSubstr;

class LineWriterTest : public ::testing::Test {
 protected:
  LineWriterTest() {
    signal(SIGPIPE, SIG_IGN);
    EXPECT_EQ(pipe(ends_), 0);
    EXPECT_EQ(fcntl(ends_[1], F_SETPIPE_SZ, 4096), 4096);
    flags_ = fcntl(ends_[1], F_GETFL);
    writer_ = std::make_unique<LineWriter>(ends_[1], 1000, [](int64_t dropped) {
      return "dropped " + std::to_string(dropped) + "\n";
    });
  }
  ~LineWriterTest() override {
    EXPECT_EQ(fcntl(ends_[1], F_GETFL), flags_);
    CloseReader();
    writer_ = nullptr;
    close(ends_[1]);
  }
  void CloseReader() {
    if (ends_[0] >= 0) close(std::exchange(ends_[0], -1));
  }
  // Reads until `text` has come.
  std::string ReadUntil(const std::string& text) {
    std::string out;
    char buffer[512];
    while (out.find(text) == std::string::npos) {
      const ssize_t n = read(ends_[0], buffer, sizeof(buffer));
      if (n <= 0) break;
      out.append(buffer, static_cast<size_t>(n));
    }
    return out;
  }

  int ends_[2] = {-1, -1};
  int flags_ = 0;
  std::unique_ptr<LineWriter> writer_;
};

TEST_F(LineWriterTest, LinesComeInOrder) {
  for (const char* line : {"one\n", "two\n", "three\n"}) writer_->Add(line);
  EXPECT_TRUE(writer_->Flush(10));
  EXPECT_EQ(ReadUntil("three\n"), "one\ntwo\nthree\n");
  EXPECT_EQ(writer_->dropped(), 0);
}

TEST_F(LineWriterTest, AFullPipeDropsAndTells) {
  const std::string line = std::string(99, 'x') + "\n";
  int64_t lines = 0;
  for (; writer_->Flush(0.1); ++lines) writer_->Add(line);  // until the pipe is full
  EXPECT_EQ(lines, 4096 / 100 + 1);
  for (int i = 0; i < 1000; ++i, ++lines) writer_->Add(line);
  const int64_t dropped = writer_->dropped();
  EXPECT_EQ(dropped, 1000 - 9);  // the queue holds nine lines beside the line being written
  const std::string out = ReadUntil("dropped ");
  EXPECT_EQ(out.find("dropped"), static_cast<size_t>(lines - dropped) * line.size());
  EXPECT_THAT(out, HasSubstr("dropped " + std::to_string(dropped) + "\n"));
  writer_->Add("again\n");
  EXPECT_THAT(ReadUntil("again\n"), HasSubstr("again\n"));
  EXPECT_EQ(writer_->dropped(), dropped);
}

}  // namespace
}  // namespace fox
