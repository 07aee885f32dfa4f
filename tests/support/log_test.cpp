#include "support/log.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace flashlift {
namespace {

TEST(Log, IsSilentByDefault) {
  testing::internal::CaptureStderr();
  log(LogLevel::kError, "nobody asked");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// The level is read once, so that this needs a process of its own.
TEST(Log, WritesMessagesOfItsLevelToStandardError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto log_and_exit = [] {
    setenv("FLASHLIFT_LOG", "warning", 1);
    log(LogLevel::kInfo, "less important");
    log(LogLevel::kWarning, "{} tiles", 3);
    std::exit(0);
  };
  EXPECT_EXIT(log_and_exit(), testing::ExitedWithCode(0), "^[^\n]*\\[warning\\] 3 tiles\n$");
}

}  // namespace
}  // namespace flashlift
