#include "score/key_count.h"

#include <gtest/gtest.h>

#include "score/simplify.h"

namespace flashlift::score {
namespace {

TEST(KeyCount, OfDivisors) {
  const auto divides = [](const char* body) {
    const auto program = parse_program(std::string("mask_mod() {") + body + "}");
    EXPECT_TRUE(program.ok()) << program.error().message;
    return divides_by_kv_len(*program);
  };
  EXPECT_TRUE(divides("%0 = add kv_len, 1; %1 = floor_div q, %0; %2 = eq %1, 0; return %2"));
  EXPECT_TRUE(divides("%0 = mod q, kv_len; %1 = eq %0, 0; return %1"));
  EXPECT_FALSE(divides("%0 = floor_div kv_len, 4; %1 = lt kv, %0; return %1"));
  EXPECT_FALSE(divides("%0 = floor_div q, q_len; %1 = eq %0, kv_len; return %1"));
  EXPECT_FALSE(divides("%0 = to_f32 kv_len; %1 = div 1.0, %0; %2 = gt %1, 0.5; return %2"));
}

TEST(KeyCount, BecomesAConstant) {
  const auto program =
      parse_program("mask_mod() { %0 = floor_div kv_len, 4; %1 = floor_div kv, %0; %2 = lt %1, q_len; return %2 }");
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_EQ(print_one_line(simplify(with_kv_len(*program, 400))),
            "mask_mod() { %0 = floor_div kv, 100; %1 = lt %0, q_len; return %1 }");
}

}  // namespace
}  // namespace flashlift::score
