// Vector functions that compiled code calls for less frequent elementary functions.
#pragma once

#include <span>
#include <string_view>

#include "cpu/tile/isa.h"

namespace flashlift::cpu {

// A function that maps vectors of the instruction set's width (one per operand) to a vector.
struct LibraryFunction {
  const char* scalar;  // its scalar form
  const char* name;
  void* address;
};

// glibc's libmvec: errors of at most 4 ulp. It calls the scalar functions for special values.
std::span<const LibraryFunction> math_library(Isa isa);

// The vector form of a scalar function that a row of flashlift/ops.def names.
const LibraryFunction* vector_function(std::string_view scalar, Isa isa);

}  // namespace flashlift::cpu
