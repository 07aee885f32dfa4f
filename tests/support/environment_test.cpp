#include "support/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace flashlift {
namespace {

std::string refusal(const char* name, const char* value) {
  setenv(name, value, 1);
  const Status status = check_environment();
  unsetenv(name);
  return status.ok() ? "" : status.error().message;
}

TEST(Environment, RefusesWhatAVariableCannotBe) {
  for (const char* value : {"0", "-1", "4097", "99999999999", "two", "2 ", "1.5", "0x2"}) {
    EXPECT_EQ(refusal("FLASHLIFT_THREADS", value),
              "FLASHLIFT_THREADS is '" + std::string(value) + "', expected a number from 1 to 4096");
  }
  for (const char* value : {"", "1", "4096"}) {
    EXPECT_EQ(refusal("FLASHLIFT_THREADS", value), "") << value;
  }
  for (const char* value : {"loud", "DEBUG", "2"}) {
    EXPECT_EQ(refusal("FLASHLIFT_LOG", value),
              "FLASHLIFT_LOG is '" + std::string(value) + "', expected debug, info, warning, error or off");
  }
  for (const char* value : {"", "debug", "info", "warning", "error", "off"}) {
    EXPECT_EQ(refusal("FLASHLIFT_LOG", value), "") << value;
  }
  for (const char* value : {"caches", "./caches", "~/caches"}) {
    EXPECT_EQ(refusal("FLASHLIFT_CACHE_DIR", value),
              "FLASHLIFT_CACHE_DIR is " + std::string(value) + "; expected an absolute path");
  }
  for (const char* value : {"", "/nowhere/caches"}) {
    EXPECT_EQ(refusal("FLASHLIFT_CACHE_DIR", value), "") << value;
  }
}

}  // namespace
}  // namespace flashlift
