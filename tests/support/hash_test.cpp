#include "support/hash.h"

#include <gtest/gtest.h>

namespace flashlift {
namespace {

// The values are part of the cache format: if they change, no stored kernel is found again.
TEST(Hash, IsXxh3) {
  EXPECT_EQ(hash_hex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(hash_hex("a"), hash_hex("b"));
  EXPECT_EQ(hash_hex("flashlift").size(), 32u);
}

}  // namespace
}  // namespace flashlift
