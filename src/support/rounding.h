// Division and multiples of counts, which are not negative.
#pragma once

#include <cstdint>

namespace flashlift {

// Not (x + y - 1) / y, which overflows if a caller gives tiles or blocks of nearly 2^63.
constexpr int64_t divide_up(int64_t x, int64_t y) { return x / y + (x % y > 0 ? 1 : 0); }
constexpr int64_t round_up(int64_t x, int64_t multiple) { return divide_up(x, multiple) * multiple; }

}  // namespace flashlift
