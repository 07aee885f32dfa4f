// Vector functions that compiled code calls for the rarer elementary functions.
#pragma once

#include <span>
#include <string_view>

#include "cpu/tile/isa.h"

namespace flashlift::cpu {

// A function that maps vectors of the instruction set's width (one per operand) to a vector.
struct LibraryFunction {
  const char* scalar;  // the function that it is the vector form of
  const char* name;
  void* address;
};

// glibc's libmvec: at most 4 ulp, and it hands special values to the scalar functions.
std::span<const LibraryFunction> math_library(Isa isa);

// The vector form of a scalar function that a row of flashlift/ops.def names.
const LibraryFunction* vector_function(std::string_view scalar, Isa isa);

}  // namespace flashlift::cpu
