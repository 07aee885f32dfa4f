// Division and multiples of counts, which are not negative.
#pragma once

#include <cstdint>

namespace flashlift {

constexpr int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }
constexpr int64_t round_up(int64_t x, int64_t multiple) { return divide_up(x, multiple) * multiple; }

}  // namespace flashlift
