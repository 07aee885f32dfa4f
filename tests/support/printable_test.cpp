#include "support/printable.h"

#include <gtest/gtest.h>

namespace flashlift {
namespace {

TEST(Printable, KeepsText) {
  const std::string text = "a name, \u00e4\u20ac\U0001f600, \u00a0 and more";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable_line(text), text);
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, SpellsOutWhatTerminalsObey) {
  EXPECT_EQ(printable("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
  EXPECT_EQ(printable("\x7f\r\b"), "\\x7f\\x0d\\x08");
  EXPECT_EQ(printable("\u009b31m"), "\\x9b31m") << "the same as \\x1b[ in one character";
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\ufffd31m");
}

TEST(Printable, KeepsLinesOnlyWhereTheyAreOurs) {
  EXPECT_EQ(printable("one\n\ttwo"), "one\n\ttwo");
  EXPECT_EQ(printable_line("one\n\ttwo"), "one\\x0a\\x09two");
}

}  // namespace
}  // namespace flashlift
