// Programs for calls of one number of keys.
#pragma once

#include <cstdint>

#include "flashlift/program.h"

namespace flashlift::score {

// Whether the program divides integers by what follows from kv_len. A division by a constant takes a multiplication.
bool divides_by_kv_len(const Program& program);

// The program for calls with this many keys: kv_len becomes a constant.
Program with_kv_len(const Program& program, int64_t kv_len);

}  // namespace flashlift::score
