// Properties of operations, besides their types, in the table flashlift/ops.def.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include "flashlift/program.h"

namespace flashlift::score {

// How an f32 result depends on finite f32 operands.
enum class Shape : uint8_t {
  kSmooth,      // without a branch or a step, and finite except for overflow
  kPole,        // without a branch or a step, but infinite or NaN for some operands
  kSteps,       // with a branch or a step; finite
  kPoleOrStep,  // with both, or with either
};
constexpr bool has_pole(Shape shape) { return shape == Shape::kPole || shape == Shape::kPoleOrStep; }
constexpr bool is_smooth(Shape shape) { return shape == Shape::kSmooth || shape == Shape::kPole; }

// The range of operands for which a function's value and slope are moderate, from which random programs draw operands.
enum class Domain : uint8_t {
  kNotDrawn,  // random programs use it in other ways
  kAnywhere,
  kPositive,  // from 1/2 on
  kNegative,  // below 0
  kUnit,      // inside (-1, 1)
};

// The operand types for which a GPU kernel can evaluate the operation on intervals, to find tiles that a mask skips.
enum class IntervalForm : uint8_t { kNone, kBooleans, kIntegers, kAllTypes };

struct Operation {
  Shape shape;
  Domain domain;
  int ulps;          // largest error of the CPU's code in units in the last place; 0: correctly rounded
  const char* cuda;  // the function that CUDA code calls
  IntervalForm cuda_interval;
  const char* stablehlo;  // the StableHLO (or CHLO) operation that it is; or ""
  const char* aten;       // names of equivalent torch functions, separated by spaces
};

const Operation& operation(Op op);

// The table for front ends in other languages; see flashlift_operations() in flashlift/flashlift.h.
std::string operations_as_json();

// For code about a few operations. A switch over all operations has no default, so that a new one is not forgotten.
constexpr bool is_any(Op op, std::initializer_list<Op> list) {
  return std::find(list.begin(), list.end(), op) != list.end();
}

}  // namespace flashlift::score
