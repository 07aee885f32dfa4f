#include "support/log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace flashlift {
namespace {

TEST(Log, GoesToTheSinkAndOnlyThere) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view message) {
    lines.push_back(std::to_string(static_cast<int>(level)) + std::string(message));
  });
  testing::internal::CaptureStderr();
  log(LogLevel::kWarning, "{} tiles", 3);
  set_log_sink(nullptr);
  EXPECT_EQ(lines, std::vector<std::string>{"23 tiles"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, IsSilentByDefault) {
  testing::internal::CaptureStderr();
  log(LogLevel::kError, "nobody asked");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace flashlift
