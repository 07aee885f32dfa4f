// Vector functions that compiled code calls for the rarer elementary functions.
#pragma once

#include <optional>
#include <span>

#include "cpu/tile/isa.h"
#include "flashlift/program.h"

namespace flashlift::cpu {

// A function that maps vectors of the instruction set's width (one per operand of `op`) to a vector.
struct LibraryFunction {
  Op op;
  const char* name;
  void* address;
};

// glibc's libmvec: at most 4 ulp, and it hands special values to the scalar functions.
std::span<const LibraryFunction> math_library(Isa isa);

}  // namespace flashlift::cpu
